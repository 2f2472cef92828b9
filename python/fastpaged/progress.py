"""Progress of something slow: a callback (phase, done, total), and the one-line bar that draws it for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

ProgressCallback = Callable[[str, int, int], None]

_WIDTH = 28
_SECONDS_BETWEEN_DRAWS = 0.05


class ProgressBar:
    """Draws `phase [####....] done/total` over itself on a terminal. Call clear() before other output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = 0  # columns on the line now
        self._phase = ""
        self._next_draw = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Draws, but not oftener than people can see."""
        now = time.monotonic()
        if phase == self._phase and now < self._next_draw and done < total:
            return
        self._phase, self._next_draw = phase, now + _SECONDS_BETWEEN_DRAWS
        filled = _WIDTH * done // total if total > 0 else 0
        line = f"{phase} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}"
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = len(line)

    def clear(self) -> None:
        """Takes the bar off the line."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0
