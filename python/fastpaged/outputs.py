"""What a request gives back: frozen snapshots, safe to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Logprob:
    """Log-probability of one token under the raw logits, before temperature and filters; in a beam search what is
    summed, after temperature, penalties and bans."""

    logprob: float
    rank: int  # 1 is the most likely
    decoded_token: str | None  # None without detokenize


@dataclass(frozen=True)
class CompletionOutput:
    """One answer; with output_kind DELTA, what is new in text, token_ids and logprobs.

    text: the prompt's text with the answer, less the prompt's text, up to where the first stop string begins. That, or
        the token that ended the answer, is in it only with include_stop_str_in_output. While the answer grows, an end
        that may still become a stop string or a character is held back. Always "" without detokenize.
    token_ids: every generated token, the ending one and those of a stop string included.
    cumulative_logprob: of the whole answer so far, with deltas too.
    logprobs: per generated token, {token id: Logprob}: the token itself first, then the alternatives, best first.
        None, like cumulative_logprob (which a beam search always has), unless SamplingParams.logprobs asked. An
        immutable sequence that equals the list of these dicts and makes each when it is read: list() makes them all.
        dataclasses.asdict() leaves it as it is.
    finish_reason: None while running. "stop": an end-of-sequence token, a stop token or a stop string. "length":
        max_tokens, the context, or the end of the KV pool. "abort": the caller's wish, or time was up. "error": this
        request's own computation failed.
    stop_reason: what stopped it: the stop string, or the id of the stop token; None for end-of-sequence. "deadline" or
        "queue_timeout": which time was up.
    index: which of the request's answers; of those with best_of > n or a beam search its rank, the best is 0.
    seed: the seed in use, drawn or given; None for an unseeded greedy request. A request with it and n = 1 has this
        answer too.
    score: of a beam search, cumulative_logprob / (number of tokens)^length_penalty; else None.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: Sequence[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int | None
    lora_request: None = None  # there are no adapters
    score: float | None = None


@dataclass(frozen=True)
class RequestMetrics:
    """arrival_time is wall-clock (time.time()); every *_ts is time.monotonic(); latencies are in seconds.

    None: has not happened yet.
    """

    num_generation_tokens: int  # of all branches, also those whose answers are not kept
    num_preemptions: int
    num_tokens_recomputed: int  # computed once more after a preemption; what was found in the prefix cache was not
    num_bytes_swapped: int  # of KV blocks, out to host memory and in again
    arrival_time: float
    queued_ts: float
    scheduled_ts: float | None
    first_token_ts: float | None
    last_token_ts: float | None
    first_token_latency: float | None


@dataclass(frozen=True)
class RequestOutput:
    """A request as it stood after one step; with output_kind DELTA, what is new since the output before.

    prompt is None when only token ids were given.
    prompt_logprobs: one entry per token of the prompt: None for the first, then {token id: Logprob} of the raw logits
        after the tokens before it: the token itself first, then the alternatives, best first. None unless
        SamplingParams.prompt_logprobs asked, and while they are not all known: they are from the first generated token
        on, but for a request that was aborted or failed before it. With deltas they come once, with that first token.
        The same kind of sequence as CompletionOutput.logprobs.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: Sequence[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0  # of the prompt, not computed but found when it was let in
    num_cache_creation_tokens: int = 0
    # What other engines' outputs have, and there is nothing for.
    lora_request: None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    kv_transfer_params: None = None


@dataclass(frozen=True)
class BeamSearchSequence:
    """One answer of a beam search.

    tokens, text: the prompt with the answer. output_token_ids, output_text: the answer alone. Without detokenize both
        texts are empty.
    cum_logprob: the sum of the logprobs of the answer's tokens. score: that / (number of them)^length_penalty.
    logprobs, finish_reason, stop_reason: as those of CompletionOutput.
    """

    tokens: list[int]
    cum_logprob: float
    text: str
    score: float
    logprobs: Sequence[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    output_token_ids: list[int]
    output_text: str
    lora_request: None = None  # there are no adapters


@dataclass(frozen=True)
class BeamSearchOutput:
    """The answers of one beam search, best first. prompt is None when only token ids were given."""

    sequences: list[BeamSearchSequence]
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    metrics: RequestMetrics
    num_cached_tokens: int = 0  # of the prompt

    @classmethod
    def of(cls, output: RequestOutput, prompt_text: str) -> BeamSearchOutput:
        """The same answers as a request with use_beam_search gives them."""
        return cls(
            sequences=[_sequence(answer, output.prompt_token_ids, prompt_text) for answer in output.outputs],
            request_id=output.request_id,
            prompt=output.prompt,
            prompt_token_ids=output.prompt_token_ids,
            metrics=output.metrics,
            num_cached_tokens=output.num_cached_tokens,
        )


def _sequence(answer: CompletionOutput, prompt_token_ids: list[int], prompt_text: str) -> BeamSearchSequence:
    assert answer.cumulative_logprob is not None
    assert answer.score is not None
    return BeamSearchSequence(
        tokens=prompt_token_ids + answer.token_ids,
        cum_logprob=answer.cumulative_logprob,
        text=prompt_text + answer.text,
        score=answer.score,
        logprobs=answer.logprobs,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        output_token_ids=answer.token_ids,
        output_text=answer.text,
    )
