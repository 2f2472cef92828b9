"""Heartbeat: does running work advance?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Progress:
    """num_unfinished: requests that the engine's thread knows of, or is about to. seconds_since_progress: since a step
    or an op of one ended, or work came to an idle engine; of no meaning without unfinished requests."""

    num_unfinished: int
    seconds_since_progress: float

    def is_stalled(self, threshold: float) -> bool:
        """Whether there is work that has not advanced for so many seconds."""
        return self.num_unfinished > 0 and self.seconds_since_progress > threshold


class Heartbeat:
    """When an engine last did something. beat() is for its own thread, age() for any, and waits for nothing.

    An op that ends is seen by whoever asks next: a step that computes for minutes is progress as long as ops end in it.
    """

    def __init__(self, clock: Callable[[], int], num_ops: Callable[[], int]) -> None:
        """clock: in nanoseconds. num_ops: how many have ended, ever."""
        self._clock = clock
        self._num_ops = num_ops
        self._seen = num_ops()
        self._at = clock()

    def beat(self) -> None:
        """A step has ended, or work has come."""
        self._seen = self._num_ops()
        self._at = self._clock()

    def age(self) -> float:
        """Seconds since the last beat, or since an op was first seen to have ended."""
        num_ops = self._num_ops()
        if num_ops != self._seen:
            self.beat()
        return (self._clock() - self._at) / 1e9
