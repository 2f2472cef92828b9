"""RequestReport: what became of a request, for the log and for traces. Never what was said in it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fastpaged.outputs import RequestOutput
    from fastpaged.sampling_params import SamplingParams


@dataclass(frozen=True)
class RequestReport:
    """Times are in seconds; None: it never came to that. Tokens are of all its answers together.

    outcome: "stop", "length", "abort" or "error" as its answers say, all of them where they differ; "gone": the client
        left; "failed": an error ended it.
    """

    id: str
    model: str
    outcome: str
    stream: bool
    n: int
    prompt_tokens: int | None
    cached_tokens: int | None
    generation_tokens: int
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    ttft_s: float | None
    e2e_s: float
    preemptions: int
    tokens_recomputed: int
    bytes_swapped: int
    error: str | None = None  # the kind of exception

    @classmethod
    def of(
        cls, name: str, model: str, params: SamplingParams, *, stream: bool, began: float,
        output: RequestOutput | None, error: BaseException | None,
    ) -> RequestReport:  # fmt: skip
        """output: its last one. began: by time.monotonic(). error: what ended it; an exit without one is a client's."""
        metrics = None if output is None else output.metrics
        queued = scheduled = first = last = None
        if metrics is not None:
            queued, scheduled = metrics.queued_ts, metrics.scheduled_ts
            first, last = metrics.first_token_ts, metrics.last_token_ts
        return cls(
            id=name,
            model=model,
            outcome=_outcome(output, error),
            stream=stream,
            n=params.n,
            prompt_tokens=None if output is None else len(output.prompt_token_ids),
            cached_tokens=None if output is None else output.num_cached_tokens,
            generation_tokens=0 if metrics is None else metrics.num_generation_tokens,
            queue_s=_between(queued, scheduled),
            prefill_s=_between(scheduled, first),
            decode_s=_between(first, last),
            ttft_s=_between(queued, first),
            e2e_s=round(time.monotonic() - began, 6),
            preemptions=0 if metrics is None else metrics.num_preemptions,
            tokens_recomputed=0 if metrics is None else metrics.num_tokens_recomputed,
            bytes_swapped=0 if metrics is None else metrics.num_bytes_swapped,
            error=None if error is None else type(error).__name__,
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


class Reader(Protocol):
    """Whoever is told of every request that has ended."""

    def tell(self, report: RequestReport, headers: Any) -> None:
        """headers: of the HTTP request."""


class RequestLog:
    """A line of JSON for every request."""

    def tell(self, report: RequestReport, headers: Any) -> None:
        """See Reader."""
        logging.getLogger("fastpaged.requests").info("%s", json.dumps(report.as_dict()))


def _outcome(output: RequestOutput | None, error: BaseException | None) -> str:
    if error is not None:
        return "failed"
    if output is None or not output.finished:
        return "gone"
    reasons = dict.fromkeys(answer.finish_reason or "" for answer in output.outputs)
    return "+".join(reasons)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(end - begin, 6)
