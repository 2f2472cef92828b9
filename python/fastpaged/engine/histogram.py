"""Histogram: how often values fell between given bounds."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Histogram:
    """bounds: rising; a value counts in the first bucket whose bound is not below it, the last of which has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0  # of the values

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Of values."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """How many values are at most each bound; the last entry is of all."""
        running, found = 0, []
        for count in self.counts:
            running += count
            found.append(running)
        return found


def one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20, ... up to a number."""
    bounds: list[float] = []
    scale = 1
    while scale <= most:
        bounds += [scale * step for step in (1, 2, 5) if scale * step <= most]
        scale *= 10
    return bounds
