"""Admission: the door of the engine. A request is checked here, once, and nothing behind the door checks it again."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING

from fastpaged.engine.lazy_logprobs import BYTES_PER_ENTRY
from fastpaged.engine.no_tokenizer import NoTokenizer
from fastpaged.engine.request_terms import RequestTerms
from fastpaged.errors import InvalidRequestError
from fastpaged.param_checks import refusal
from fastpaged.sampling_params import SamplingParams
from fastpaged.tokenizer.tokenizer import LONG_TEXT

if TYPE_CHECKING:
    from fastpaged.tokenizer import Tokenizer

MAX_PROMPT_LOGPROBS_BYTES = 1 << 30  # of one prompt

Prompt = str | list[int] | Mapping[str, object]

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_PROMPT_FORMS = "a string, a list of token ids, or a dict with 'prompt' or 'prompt_token_ids', and maybe 'cache_salt'"


@dataclass(frozen=True)
class EngineRequest:
    """A request that may run: tokenised, within every limit.

    num_logprobs and num_prompt_logprobs count alternatives; None is off. stop_token_ids: whatever ends it, sorted:
    end-of-sequence (unless ignored) and the params' own. bad_words: the token ids of every form of every bad word.
    cache_salt: the prefixes of requests with another one are not found; "" without one.
    terms: its queue_timeout is the engine's where it has none of its own.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    stop_token_ids: list[int]
    bad_words: list[list[int]]
    cache_salt: str = ""
    terms: RequestTerms = field(default_factory=RequestTerms)


def check_types(request_id: object, params: object) -> None:
    """What can be said of them before a tokenizer is asked."""
    if not isinstance(request_id, str) or not request_id:
        raise InvalidRequestError(f"request_id must be a non-empty string, got {request_id!r}")
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")


def checked_salt(name: str, salt: object) -> str:
    """A non-empty string: "" stands for none. name: what the caller knows it by."""
    if not isinstance(salt, str) or not salt:
        raise refusal(name, salt, "a non-empty string")
    check_unicode(name, salt)
    return salt


def check_unicode(name: str, text: str) -> None:
    """InvalidRequestError for a text that UTF-8 cannot hold. name: what the caller knows it by."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} must be valid Unicode, got the lone surrogate {text[error.start]!r} at position {error.start}"
        ) from None


class Admission:
    """Turns (prompt, params) into an EngineRequest, or raises InvalidRequestError. Holds no state of requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        max_logprobs: int,
        max_branches: int,
        scheduling_policy: str = "fcfs",
        queue_timeout: float | None = None,
    ) -> None:
        """num_blocks: of the KV pool. max_logprobs: the most alternatives a request may ask for; -1 is the whole
        vocabulary. max_branches: the most sequences a request may take. queue_timeout: of requests that have none."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_branches = max_branches
        self._scheduling_policy = scheduling_policy
        self._queue_timeout = queue_timeout
        self._max_logprobs = vocab_size if max_logprobs == -1 else max_logprobs

    def admit(
        self, request_id: str, prompt: Prompt, params: SamplingParams, terms: RequestTerms | None = None
    ) -> EngineRequest:
        """max_tokens beyond the rest of the context is cut to it. terms: None asks for nothing."""
        check_types(request_id, params)
        terms = RequestTerms() if terms is None else terms
        terms.check_priority(self._scheduling_policy)
        if params.detokenize and isinstance(self._tokenizer, NoTokenizer):
            raise InvalidRequestError("detokenize must be False with skip_tokenizer_init=True, got True")
        self._check_branches(params)
        text, token_ids = self._token_ids(prompt)
        room = self._max_model_len - len(token_ids)
        stop_token_ids = self._stop_token_ids(params)
        bad_words = self._bad_words(params)
        self._check_choice(params, stop_token_ids, bad_words)
        return EngineRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            num_logprobs=self._num_logprobs("logprobs", params.logprobs),
            num_prompt_logprobs=self._num_prompt_logprobs(params.prompt_logprobs, len(token_ids)),
            stop_token_ids=stop_token_ids,
            bad_words=bad_words,
            cache_salt=self._cache_salt(prompt),
            terms=replace(terms, queue_timeout=self._queue_timeout) if terms.queue_timeout is None else terms,
        )

    def tokens(self, prompt: Prompt) -> list[int]:
        """Of a prompt that is of a length to be answered."""
        _, token_ids = self._token_ids(prompt)
        return token_ids

    def _check_branches(self, params: SamplingParams) -> None:
        if params.num_branches > self._max_branches:
            name = "n" if params.best_of is None else "best_of"
            raise InvalidRequestError(
                f"{name}{', the beam width,' if params.use_beam_search else ''} must be at most {self._max_branches}, "
                f"the sequences that go into one step (max_num_seqs, and a token of max_num_batched_tokens each), "
                f"got {params.num_branches}"
            )

    def _token_ids(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Of a length to be answered."""
        if isinstance(prompt, Mapping):
            return self._from_mapping(prompt)
        if isinstance(prompt, str):
            return prompt, self._encode(prompt)
        if isinstance(prompt, (list, tuple)):
            return None, self._checked_ids("prompt", prompt)
        raise InvalidRequestError(f"prompt must be {_PROMPT_FORMS}, got {type(prompt).__name__}")

    def _from_mapping(self, prompt: Mapping[str, object]) -> tuple[str | None, list[int]]:
        """With both keys the ids are what runs, and the text is what RequestOutput.prompt shows."""
        if not any(key in prompt for key in _PROMPT_KEYS[:2]) or any(key not in _PROMPT_KEYS for key in prompt):
            raise InvalidRequestError(f"prompt must be {_PROMPT_FORMS}, got a dict with keys {list(prompt)!r}")
        text = prompt.get("prompt")
        if "prompt" in prompt and not isinstance(text, str):
            raise InvalidRequestError(f"prompt['prompt'] must be a string, got {type(text).__name__}")
        if "prompt_token_ids" not in prompt:
            return str(text), self._encode(str(text))
        ids = prompt["prompt_token_ids"]
        if not isinstance(ids, (list, tuple)):
            raise InvalidRequestError(f"prompt['prompt_token_ids'] must be a list of ints, got {type(ids).__name__}")
        return None if text is None else str(text), self._checked_ids("prompt_token_ids", ids)

    def _cache_salt(self, prompt: Prompt) -> str:
        if not isinstance(prompt, Mapping) or "cache_salt" not in prompt:
            return ""
        return checked_salt("prompt['cache_salt']", prompt["cache_salt"])

    def _encode(self, text: str) -> list[int]:
        if not text:
            raise InvalidRequestError("prompt must not be empty, got ''")
        check_unicode("prompt", text)
        if len(text) > LONG_TEXT:
            self._check_length(self._tokenizer.fewest_tokens(text), "at least ")
        return self._checked_ids("prompt", self._tokenizer.encode(text))

    def _checked_ids(self, name: str, ids: list[int] | tuple[object, ...]) -> list[int]:
        if not ids:
            raise InvalidRequestError(f"{name} must hold at least one token, got none")
        self._check_length(len(ids))  # before each of what may be millions is looked at
        checked: list[int] = []
        for position, token_id in enumerate(ids):
            if isinstance(token_id, bool) or not isinstance(token_id, Integral):
                raise InvalidRequestError(f"{name}[{position}] must be an int, got {token_id!r}")
            checked.append(self._in_vocabulary(f"{name}[{position}]", int(token_id)))
        return checked

    def _in_vocabulary(self, name: str, token_id: int) -> int:
        if not 0 <= token_id < self._vocab_size:
            raise InvalidRequestError(f"{name} must be a token id in [0, {self._vocab_size}), got {token_id}")
        return token_id

    def _check_length(self, num_tokens: int, about: str = "") -> None:
        """Names the longest prompt that would fit, and for the pool also the smallest pool. about: how exact
        num_tokens is."""
        kv_capacity = self._num_blocks * self._block_size
        longest = min(self._max_model_len - 1, kv_capacity)
        if num_tokens >= self._max_model_len:
            raise InvalidRequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, the prompt has "
                f"{about}{num_tokens} tokens, and at least 1 is needed for the answer. Please shorten the prompt to at "
                f"most {longest} tokens."
            )
        if num_tokens > kv_capacity:
            raise InvalidRequestError(
                f"The KV pool holds {kv_capacity} tokens, {self._num_blocks} blocks of {self._block_size}. However, "
                f"the prompt has {about}{num_tokens} tokens. Please shorten the prompt to at most {longest} tokens, or "
                f"give the engine at least {-(-num_tokens // self._block_size)} num_blocks, or as much "
                f"kv_cache_memory_bytes."
            )

    def _num_logprobs(self, name: str, given: int | None) -> int | None:
        if given is None:
            return None
        wanted = self._vocab_size if given == -1 else given
        if wanted > self._max_logprobs:
            raise InvalidRequestError(
                f"{name} must be at most max_logprobs = {self._max_logprobs}, got {given}"
                + (f" (the whole vocabulary, {self._vocab_size})" if given == -1 else "")
            )
        return min(wanted, self._vocab_size)

    def _num_prompt_logprobs(self, given: int | None, num_tokens: int) -> int | None:
        """What is kept of a prompt until its outputs are gone must not take the machine down."""
        wanted = self._num_logprobs("prompt_logprobs", given)
        if wanted is None:
            return None
        token_bytes = (wanted + 1) * BYTES_PER_ENTRY
        if num_tokens * token_bytes > MAX_PROMPT_LOGPROBS_BYTES:
            fitting = MAX_PROMPT_LOGPROBS_BYTES // BYTES_PER_ENTRY // num_tokens - 1
            raise InvalidRequestError(
                f"prompt_logprobs must take at most {MAX_PROMPT_LOGPROBS_BYTES} bytes, got {given}: {wanted} "
                f"alternatives of {num_tokens} tokens need {num_tokens * token_bytes}. prompt_logprobs = {fitting} "
                f"would fit this prompt, and a prompt of {MAX_PROMPT_LOGPROBS_BYTES // token_bytes} tokens this many"
            )
        return wanted

    def _stop_token_ids(self, params: SamplingParams) -> list[int]:
        own = {
            self._in_vocabulary(f"stop_token_ids[{position}]", token_id)
            for position, token_id in enumerate(params.stop_token_ids or ())
        }
        return sorted(own if params.ignore_eos else own | self._tokenizer.eos_token_ids)

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """As it stands at the beginning of a text, and as it stands after another word. A form with tokens that the
        model does not have needs no ban."""
        forms = {}
        for position, word in enumerate(params.bad_words or ()):
            check_unicode(f"bad_words[{position}]", word)
            bare = word.lstrip()
            for text in (bare, " " + bare) if bare else (word,):
                token_ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                if token_ids and max(token_ids) < self._vocab_size:
                    forms[token_ids] = list(token_ids)
        return list(forms.values())

    def _check_choice(self, params: SamplingParams, stop_token_ids: list[int], bad_words: list[list[int]]) -> None:
        """That the masks leave a token for the first place, as far as that is certain beforehand."""
        for token_id in params.logit_bias or ():
            self._in_vocabulary("a key of logit_bias", token_id)
        for position, token_id in enumerate(params.allowed_token_ids or ()):
            self._in_vocabulary(f"allowed_token_ids[{position}]", token_id)
        barred = {word[0] for word in bad_words if len(word) == 1}
        if params.min_tokens > 0:
            barred.update(token_id for token_id in stop_token_ids if token_id < self._vocab_size)
        if params.allowed_token_ids is not None and barred.issuperset(params.allowed_token_ids):
            raise InvalidRequestError(
                "allowed_token_ids must hold a token that neither bad_words nor min_tokens bars, got "
                f"{reprlib.repr(params.allowed_token_ids)} with min_tokens = {params.min_tokens}"
            )
        if len(barred) >= self._vocab_size:
            raise InvalidRequestError(
                f"bad_words and stop_token_ids must leave a token of the vocabulary, got all {self._vocab_size} of it"
            )
