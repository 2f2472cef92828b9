"""What a request gives back: frozen snapshots, safe to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Logprob:
    """Log-probability of one token under the raw logits, before temperature and filters."""

    logprob: float
    rank: int  # 1 is the most likely
    decoded_token: str


@dataclass(frozen=True)
class CompletionOutput:
    """One answer.

    text: the prompt's text with the answer, less the prompt's text. The token that ended the answer is not in it.
    token_ids: every generated token, the ending one included.
    logprobs: per generated token, {token id: Logprob}: the token itself first, then the alternatives, best first.
        None, like cumulative_logprob, unless SamplingParams.logprobs asked.
    finish_reason: None while running. "stop": an end-of-sequence token. "length": max_tokens, the context, or the end
        of the KV pool. "abort": the caller's wish. "error": this request's own computation failed.
    stop_reason: what stopped it beside end-of-sequence, for which it is None.
    seed: the seed in use, drawn or given; None for an unseeded greedy request.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    seed: int | None


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
    """A request as it stood after one step. prompt is None when only token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
