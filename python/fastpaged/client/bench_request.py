"""BenchRequest: one request of a load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class BenchRequest:
    """prompt: text, or token ids. num_prompt_tokens: of text an estimate. arrival_s: seconds after the first request of
    a trace; None: whenever the load likes."""

    prompt: str | list[int]
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_s: float | None = None


def fitting(requests: Sequence[BenchRequest], max_model_len: int | None) -> list[BenchRequest]:
    """Those whose tokens, of prompt and answer, a context of that length holds."""
    if max_model_len is None:
        return list(requests)
    return [r for r in requests if r.num_prompt_tokens + r.num_output_tokens <= max_model_len]
