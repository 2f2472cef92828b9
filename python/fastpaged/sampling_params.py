"""SamplingParams: what a request asks of the sampler. Validated once, here."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

from fastpaged import param_checks as check
from fastpaged.param_checks import refusal

GREEDY_BELOW = 1e-5  # temperatures under this are greedy
MIN_TEMPERATURE = 0.01  # smaller ones, when not greedy, overflow the softmax for nothing
MAX_SEED = 2**64 - 1
MAX_BIAS = 100.0
MAX_N = 16384
MAX_LENGTH_PENALTY = 16.0  # beyond it, scores of long answers are all but 0, or infinite, and no order is left
MAX_STOPS = 256  # each of which looks at every character
MAX_STOP_LENGTH = 4096  # characters
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256  # characters
SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127

_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


# Fields that are known and not served: what they may be all the same, and why nothing else.
_NOT_SERVED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "logprob_token_ids": ((None,), "logprobs of chosen ids are not there yet; logprobs=-1 holds every token's"),
    "prompt_logprob_token_ids": ((None,), "prompt logprobs of chosen ids are not there yet; see prompt_logprobs"),
    "prompt_logprob_start": ((None, 0), "prompt logprobs begin with the prompt; leave out what is not needed"),
    "flat_logprobs": ((False, None), "logprobs are a list of {token id: Logprob} only"),
    "structured_outputs": ((None,), "structured outputs are not there yet"),
    "guided_decoding": ((None,), "it became structured_outputs, which are not there yet"),
    "truncate_prompt_tokens": ((None,), "a prompt is never cut in silence; cut its token ids before giving them"),
    "logits_processors": ((None,), "no Python runs per token; see logit_bias, bad_words and allowed_token_ids"),
    "extra_args": ((None, {}), "there is nothing that would read them"),
    "thinking_token_budget": ((None, -1), "thinking is not told from answering; see max_tokens"),
    "repetition_detection": ((None,), "repetition is not watched for; see repetition_penalty"),
    "watermarking": ((None, False), "answers are not marked"),
    "routed_experts_prompt_start": ((None,), "there is no model with experts"),
    "trace_decode_token_ids": ((None,), "an answer is not made to follow given tokens"),
    "skip_clone": ((False, True, None), "params are frozen and not cloned"),
}


class RequestOutputKind(enum.Enum):
    """What each RequestOutput of a request holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last one
    FINAL_ONLY = 2  # everything, once, when the request has finished


@dataclass(frozen=True)
class SamplingParams:
    """How the next tokens are chosen, and when to stop.

    n: answers per prompt, sampled independently: 1 to 16,384, and 1 if greedy, for greedy answers are all the same. The
        engine takes at most its max_num_seqs of them.
    best_of: sample so many, n or more, and keep the n of the highest cumulative logprob, best first; None: n. Above n
        there is one output, at the end, whatever output_kind says: what is best is known then.
    use_beam_search: search for the likeliest answers instead of sampling, with best_of beams (None: n), and keep the n
        best. There is one output, at the end. With temperature 0 or 1 the logprobs are the model's own, another
        temperature divides the logits first; penalties, logit_bias and bans act on the logprobs. Nothing is drawn, so
        that top_p, top_k and min_p must be off. Fewer than n answers come back where no more are possible, as with few
        allowed_token_ids.
    length_penalty: a beam's score is the sum of its logprobs / (number of its tokens)^length_penalty, so that a larger
        one favours longer answers. [-16, 16]. This and the next: only with use_beam_search.
    early_stopping: of a beam search that has found best_of answers. True: it ends. False: it ends once the best beam,
        scored as it is, is no better than the worst of them. "never": once no beam can become better at any length.
    presence_penalty, frequency_penalty: [-2, 2]; taken off the logit of each token of the output once, or as often
        as it came. 0 is off.
    repetition_penalty: finite, > 0; the logits of the prompt's and the output's tokens are divided by it if above 0,
        else multiplied. 1 is off.
    temperature: [0, 2]; below 1e-5 the most likely token is taken (greedy), and top_p, top_k, min_p are reset.
    top_p: (0, 1]; keep the smallest set of tokens whose probability reaches it. 1 is off.
    top_k: keep the k most likely tokens. 0 or -1 is off.
    min_p: [0, 1]; keep tokens at least this likely relative to the best. 0 is off.
    seed: 0 to 2**64 - 1; with it, the answer depends on the request alone. None or -1: the engine draws one. Each
        answer has a seed of its own, made from this one, which CompletionOutput.seed shows; that of the first is this.
    stop: strings that end the answer; one, or a list of at most 256, of at most 4,096 characters each; a tuple from
        then on. Needs detokenize.
    stop_token_ids: tokens that end the answer beside end-of-sequence, under ignore_eos too; a tuple from then on.
    bad_words: strings that the output may not come to hold as these very tokens, each with and without a space before
        it: their last token is barred once the output ends in the tokens before it. At most 1,024 of at most 256
        characters; a tuple from then on.
    include_stop_str_in_output: show the stop string, too.
    ignore_eos: go on after an end-of-sequence token.
    max_tokens: the most tokens to generate; None is the rest of the model's context. More than that is cut to it.
    min_tokens: the tokens that would end the answer are barred until so many tokens are generated; <= max_tokens.
    logprobs: return the logprob of each generated token and of this many alternatives. None is off, -1 the whole
        vocabulary; at most the engine's max_logprobs.
    prompt_logprobs: the same for each token of the prompt, given the tokens before it. What is returned holds 8 bytes
        for every alternative of every token; the engine refuses more than 1 GiB for one prompt.
    detokenize: make text. Without it CompletionOutput.text stays empty.
    skip_special_tokens: leave special tokens out of the text.
    spaces_between_special_tokens: accepted for the habit's sake; it changes nothing, for the text is made by the
        tokenizer's own decoder, which knows no such spaces.
    output_kind: what each RequestOutput holds.
    logit_bias: {token id: what is added to its logit}, cut to [-100, 100].
    allowed_token_ids: the only tokens that may come; not empty; a tuple from then on.
    stream_interval: the engine reports the first token, then after every so many, and the end. None: the engine's own.
    skip_reading_prefix_cache: compute the whole prompt, whatever the prefix cache holds of it. Answers are the same.
        None: False.

    The fields after these are known from elsewhere and not served: another value than the default is refused with the
    reason.

    Raises InvalidRequestError naming the field, the value and what is allowed.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool | None = None
    best_of: int | None = None
    use_beam_search: bool | None = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    logprob_token_ids: None = field(default=None, repr=False)
    prompt_logprob_token_ids: None = field(default=None, repr=False)
    prompt_logprob_start: int | None = field(default=None, repr=False)
    flat_logprobs: bool = field(default=False, repr=False)
    structured_outputs: None = field(default=None, repr=False)
    guided_decoding: None = field(default=None, repr=False)
    truncate_prompt_tokens: None = field(default=None, repr=False)
    logits_processors: None = field(default=None, repr=False)
    extra_args: None = field(default=None, repr=False)
    thinking_token_budget: int | None = field(default=None, repr=False)
    repetition_detection: None = field(default=None, repr=False)
    watermarking: bool | None = field(default=None, repr=False)
    routed_experts_prompt_start: None = field(default=None, repr=False)
    trace_decode_token_ids: None = field(default=None, repr=False)
    skip_clone: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_penalties()
        self._check_limits()
        self._check_token_rules()
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise refusal(name, getattr(self, name), "True or False")
        if not check.is_one_of(self.skip_reading_prefix_cache, (None, False, True)):
            raise refusal("skip_reading_prefix_cache", self.skip_reading_prefix_cache, "None, True or False")
        self._check_text()
        self._check_branches()
        self._normalize_temperature()
        for name, (allowed, why) in _NOT_SERVED.items():
            check.not_served(name, getattr(self, name), allowed, why)

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """As from a request's body, where None is a field that was not given (but max_tokens=None is the rest of the
        context) and the token ids of logit_bias may be strings."""
        defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        wanted = {
            name: value
            for name, value in given.items()
            if value is not None or name == "max_tokens" or name not in defaults
        }
        if isinstance(wanted.get("logit_bias"), Mapping):
            wanted["logit_bias"] = {as_token_id(key): bias for key, bias in wanted["logit_bias"].items()}
        return cls(**wanted)

    def clone(self) -> SamplingParams:
        """An equal one that shares nothing changeable."""
        return replace(self)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def num_branches(self) -> int:
        """Sequences that one request takes: the answers that it chooses from, or the beams of its search."""
        return self.n if self.best_of is None else self.best_of

    def _check_numbers(self) -> None:
        self._set("temperature", check.number("temperature", self.temperature, 0.0, 2.0, "a number in [0, 2]"))
        self._set("top_p", check.number("top_p", self.top_p, 0.0, 1.0, "a number in (0, 1]"))
        if self.top_p == 0.0:
            raise refusal("top_p", self.top_p, "a number in (0, 1]")
        self._set("min_p", check.number("min_p", self.min_p, 0.0, 1.0, "a number in [0, 1]"))
        top_k = check.integer("top_k", self.top_k, -1, 2**31 - 1, "0 or -1 (off), or an integer from 1 to 2**31 - 1")
        self._set("top_k", max(top_k, 0))

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            self._set(name, check.number(name, getattr(self, name), -2.0, 2.0, "a number in [-2, 2]"))
        penalty, allowed = self.repetition_penalty, "a finite number > 0, within float32"
        self._set(
            "repetition_penalty",
            check.number("repetition_penalty", penalty, SMALLEST_FLOAT32, LARGEST_FLOAT32, allowed),
        )

    def _check_limits(self) -> None:
        if self.seed is not None:
            allowed = "None or -1 (drawn), or an integer from 0 to 2**64 - 1"
            seed = check.integer("seed", self.seed, -1, MAX_SEED, allowed)
            self._set("seed", None if seed == -1 else seed)
        if self.max_tokens is not None:
            allowed = "None (the rest of the context), or an integer from 1 to 2**31 - 1"
            self._set("max_tokens", check.integer("max_tokens", self.max_tokens, 1, 2**31 - 1, allowed))
        most = 2**31 - 1 if self.max_tokens is None else self.max_tokens
        allowed = "an integer from 0 to " + ("2**31 - 1" if self.max_tokens is None else f"max_tokens = {most}")
        self._set("min_tokens", check.integer("min_tokens", self.min_tokens, 0, most, allowed))
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            if wanted is not None:
                allowed = "None (off), -1 (the whole vocabulary), or an integer >= 0"
                self._set(name, check.integer(name, 1 if wanted is True else wanted, -1, 2**31 - 1, allowed))
        if self.stream_interval is not None:
            allowed = "None (the engine's), or an integer from 1 to 2**31 - 1"
            self._set("stream_interval", check.integer("stream_interval", self.stream_interval, 1, 2**31 - 1, allowed))

    def _check_token_rules(self) -> None:
        ids = () if self.stop_token_ids is None else self.stop_token_ids
        self._set("stop_token_ids", check.token_ids("stop_token_ids", ids, "None, or a list of token ids"))
        if self.allowed_token_ids is not None:
            allowed = "None, or a list of at least one token id"
            checked = check.token_ids("allowed_token_ids", self.allowed_token_ids, allowed)
            if not checked:
                raise refusal("allowed_token_ids", self.allowed_token_ids, allowed)
            self._set("allowed_token_ids", checked)
        if self.logit_bias is not None:
            self._set("logit_bias", check.biases("logit_bias", self.logit_bias, MAX_BIAS))

    def _check_branches(self) -> None:
        self._set("n", check.integer("n", self.n, 1, MAX_N, f"an integer from 1 to {MAX_N}"))
        if self.best_of is not None:
            allowed = f"None, or an integer from n = {self.n} to {MAX_N}"
            self._set("best_of", check.integer("best_of", self.best_of, self.n, MAX_N, allowed))
        if not check.is_one_of(self.use_beam_search, (True, False, None)):
            raise refusal("use_beam_search", self.use_beam_search, "True or False")
        self._set("use_beam_search", self.use_beam_search is True)
        most, allowed = MAX_LENGTH_PENALTY, f"a number in [-{MAX_LENGTH_PENALTY:g}, {MAX_LENGTH_PENALTY:g}]"
        self._set("length_penalty", check.number("length_penalty", self.length_penalty, -most, most, allowed))
        if not check.is_one_of(self.early_stopping, (True, False, "never")):
            raise refusal("early_stopping", self.early_stopping, "True, False or 'never'")
        if not self.use_beam_search and self.temperature < GREEDY_BELOW and self.num_branches > 1:
            name = "n" if self.n > 1 else "best_of"
            raise refusal(name, self.num_branches, "1 when the temperature is 0, for greedy answers are all the same")
        drawing, searching = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}, {"length_penalty": 1.0, "early_stopping": False}
        for name, off in (drawing if self.use_beam_search else searching).items():
            if getattr(self, name) != off:
                why = "with use_beam_search, which draws nothing" if self.use_beam_search else "without use_beam_search"
                raise refusal(name, getattr(self, name), f"{off} {why}")

    def _check_text(self) -> None:
        if not isinstance(self.output_kind, RequestOutputKind):
            raise refusal("output_kind", self.output_kind, "a RequestOutputKind")
        stop = check.strings("stop", self.stop, "None, a non-empty string, or a list of them")
        if stop and not self.detokenize:
            raise refusal("stop", self.stop, "None when detokenize is False")
        if len(stop) > MAX_STOPS:
            raise refusal("stop", f"{len(stop)} strings", f"at most {MAX_STOPS} of them")
        for position, text in enumerate(stop):
            if len(text) > MAX_STOP_LENGTH:
                raise refusal(f"stop[{position}]", f"one of {len(text)}", f"at most {MAX_STOP_LENGTH} characters long")
        self._set("stop", stop)
        allowed = f"None, or a list of at most {MAX_BAD_WORDS} non-empty strings"
        if isinstance(self.bad_words, str):  # a string is a sequence, of its characters
            raise refusal("bad_words", self.bad_words, allowed)
        bad_words = check.strings("bad_words", self.bad_words, allowed)
        if len(bad_words) > MAX_BAD_WORDS:
            raise refusal("bad_words", f"{len(bad_words)} strings", allowed)
        for position, word in enumerate(bad_words):
            if len(word) > MAX_BAD_WORD_LENGTH:
                raise refusal(f"bad_words[{position}]", word, f"at most {MAX_BAD_WORD_LENGTH} characters long")
        self._set("bad_words", bad_words)

    def _normalize_temperature(self) -> None:
        if self.temperature < GREEDY_BELOW:
            for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                self._set(name, value)
        elif self.temperature < MIN_TEMPERATURE:
            warnings.warn(f"temperature {self.temperature} is raised to {MIN_TEMPERATURE}; 0 is greedy", stacklevel=4)
            self._set("temperature", MIN_TEMPERATURE)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def as_token_id(key: object) -> object:
    """JSON has strings for keys; what is no decimal number stays as it is, to be refused."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10 else key
