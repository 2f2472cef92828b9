"""Clock: what time it is for an engine and its parts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Nanoseconds, never backwards; any thread may read it.

    The parts of an engine hold its clock and not the engine: a circle would leave both, and the model's tokenizer with
    them, to the garbage collector's next round.
    """

    def __init__(self, source: Callable[[], int] = time.monotonic_ns) -> None:
        self.source = source

    def __call__(self) -> int:
        """Now."""
        return self.source()

    def seconds(self) -> float:
        """Now, in seconds."""
        return self.source() / 1e9
