"""StepTimes: how long a step takes, by what it does; fitted to the steps of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fastpaged.engine.decisions import Row

# What a step does, and what each of it is the count of.
PARTS = (
    "step",  # one
    "prefill token",  # of a sequence that computes several in this step
    "prefill pair",  # of such a token and one that it attends to, in thousands
    "decode token",  # of a sequence that computes one
    "context token",  # that a decode token attends to, in thousands
    "block copy",
)
_ROUNDS = 20_000


def parts_of(rows: Sequence[Row], copies: Sequence[tuple[str, int, int, int]], block_ratio: float = 1.0) -> list[float]:
    """The counts of one plan, in the order of PARTS. block_ratio: of a block's size to that of the recording."""
    prefill = pairs = decode = context = 0
    for _, _, first, num in rows:
        if num > 1:
            prefill += num
            pairs += num * first + num * (num + 1) // 2
        else:
            decode += 1
            context += first + 1
    num_copies = sum(copy[3] for copy in copies) * block_ratio
    return [1.0, float(prefill), pairs / 1000, float(decode), context / 1000, float(num_copies)]


@dataclass(frozen=True)
class StepTimes:
    """seconds: of each of PARTS, none negative. The fit: num_steps of total_seconds; residual: the mean of the absolute
    errors, over the mean step; total_error: of the sum of all predicted steps, relative."""

    seconds: tuple[float, ...]
    num_steps: int
    total_seconds: float
    residual: float
    total_error: float

    @classmethod
    def fit(cls, parts: Sequence[Sequence[float]], durations: Sequence[float]) -> StepTimes:
        """Least squares without a negative time. durations: in seconds, of steps with these parts. Steps that took far
        longer than the fit says, when the machine was at something else, are left out of a second fit.

        Raises InvalidRequestError if there is no step.
        """
        if not durations:
            raise InvalidRequestError("a recording must have steps for their times to be fitted to, got none")
        counts = np.array(parts, np.float64)
        times = np.array(durations, np.float64)
        seconds = _least_squares(counts, times)
        errors = np.abs(counts @ seconds - times)
        usual = errors <= 10 * np.median(errors) + 1e-9
        if usual.sum() >= len(PARTS):
            seconds = _least_squares(counts[usual], times[usual])
        predicted = counts @ seconds
        total = float(times.sum())
        return cls(
            tuple(seconds.tolist()),
            len(times),
            total,
            float(np.abs(predicted - times).mean() / max(times.mean(), 1e-12)),
            float(predicted.sum() / max(total, 1e-12) - 1.0),
        )

    def nanoseconds(self, parts: Sequence[float]) -> int:
        """That a step with these parts takes, at least one."""
        return max(1, round(1e9 * sum(second * part for second, part in zip(self.seconds, parts, strict=True))))


def _least_squares(counts: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """x >= 0 with the least |counts x - times|: one coordinate after the other, which ends at the minimum of a convex
    function. Columns are scaled to length 1 meanwhile."""
    scale = np.linalg.norm(counts, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = counts / scale
    gram = scaled.T @ scaled
    wanted = scaled.T @ times
    x = np.zeros(counts.shape[1])
    for _ in range(_ROUNDS):
        before = x.copy()
        for i in range(len(x)):
            if gram[i, i] > 0.0:
                x[i] = max(0.0, x[i] + (wanted[i] - gram[i] @ x) / gram[i, i])
        if np.abs(x - before).max() <= 1e-12 * max(1e-300, np.abs(x).max()):
            break
    found: npt.NDArray[np.float64] = x / scale
    return found
