"""What a request gives back: frozen snapshots, safe to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Logprob:
    """Log-probability of one token under the raw logits, before temperature and filters."""

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
        None, like cumulative_logprob, unless SamplingParams.logprobs asked. An immutable sequence that equals the list
        of these dicts and makes each when it is read: list() makes them all. dataclasses.asdict() leaves it as it is.
    finish_reason: None while running. "stop": an end-of-sequence token, a stop token or a stop string. "length":
        max_tokens, the context, or the end of the KV pool. "abort": the caller's wish. "error": this request's own
        computation failed.
    stop_reason: what stopped it: the stop string, or the id of the stop token; None for end-of-sequence.
    seed: the seed in use, drawn or given; None for an unseeded greedy request.
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


@dataclass(frozen=True)
class RequestMetrics:
    """arrival_time is wall-clock (time.time()); every *_ts is time.monotonic(); latencies are in seconds.

    None: has not happened yet.
    """

    num_generation_tokens: int
    num_preemptions: int
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
