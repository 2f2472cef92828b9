"""StartUp: how long each phase of an engine's start took, for the log."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class StartUp:
    """Seconds by phase, in the order in which they first began. The time line begins when this object is made."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._begin = time.monotonic()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The time until the context is left, with an error or without, is this phase's."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin

    def log(self, what: str) -> None:
        """One line at level INFO: what is ready, after how long, and where that went."""
        spent = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.phases.items())
        total = time.monotonic() - self._begin
        logging.getLogger(__name__).info("%s is ready after %.3f s: %s", what, total, spent)
