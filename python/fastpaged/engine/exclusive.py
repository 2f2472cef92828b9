"""Exclusive: one thread at a time, and no waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastpaged.errors import EngineBusyError

if TYPE_CHECKING:
    from types import TracebackType


class Exclusive:
    """A context that one thread at a time may be in, as often as it likes; another's attempt raises EngineBusyError.

    Not a lock to wait for: two threads that share what is not thread-safe have made a mistake, and a wait would hide
    it until the day it becomes a deadlock.
    """

    def __init__(self, what: str) -> None:
        """what: names the thing in the error."""
        self._what = what
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise EngineBusyError(
                f"{self._what} is in use by another thread; give each thread its own, or take AsyncLLMEngine, which "
                "any number of callers may share"
            )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
