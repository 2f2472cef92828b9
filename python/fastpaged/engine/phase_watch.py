"""PhaseWatch: where the time of a step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEDULE, COPY, COMPUTE, UPDATE, OUTPUT = range(5)  # as EngineStats.PHASES names them


class PhaseWatch:
    """A stop watch with five hands, one of which goes at a time. Five readings of the clock a step."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """clock: in nanoseconds."""
        self._clock = clock
        self._times = [0] * 5
        self._since = 0

    def begin(self) -> None:
        """Of a step: all hands go back."""
        self._times = [0] * 5
        self._since = self._clock()

    def end(self, phase: int, *, of_which_copying: int = 0) -> None:
        """What has passed since begin() or the last end() was this phase, but for so many nanoseconds of copies."""
        now = self._clock()
        self._times[phase] += now - self._since - of_which_copying
        self._times[COPY] += of_which_copying
        self._since = now

    @property
    def seconds(self) -> list[float]:
        """By phase."""
        return [time / 1e9 for time in self._times]
