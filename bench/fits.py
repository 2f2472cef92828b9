"""Straight lines through measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """fixed + slope * x; r2: the share of the variance that it explains."""

    fixed: float
    slope: float
    r2: float

    @staticmethod
    def fit(xs: Sequence[float], ys: Sequence[float]) -> Line:
        """By least squares of the relative error, so that the small ones count as much as the large.

        Raises ValueError unless there are two different xs, and every y is positive.
        """
        if len(set(xs)) < 2 or min(ys, default=0.0) <= 0.0:
            raise ValueError(f"a line needs two different xs and positive ys, got {list(xs)} and {list(ys)}")
        weights = [1.0 / (y * y) for y in ys]
        total = sum(weights)
        mean_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
        mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
        points = list(zip(weights, xs, ys, strict=True))
        slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in points)
        slope /= sum(w * (x - mean_x) ** 2 for w, x, _ in points)
        fixed = mean_y - slope * mean_x
        left = sum(w * (y - fixed - slope * x) ** 2 for w, x, y in points)
        spread = sum(w * (y - mean_y) ** 2 for w, _, y in points)
        return Line(fixed, slope, 1.0 - left / spread if spread else 1.0)
