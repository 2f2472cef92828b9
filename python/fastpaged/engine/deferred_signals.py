"""DeferredSignals: a stretch of code that Ctrl-C does not cut in two."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module of C functions under signal
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType, TracebackType

# signal.signal and signal.getsignal look each handler up in an enum, by way of an exception: 160 us at each step of an
# engine, whose own work has pushed that code out of the caches.
_get_handler = _signal.getsignal
_set_handler = _signal.signal
# Signals whose Python handlers commonly raise: KeyboardInterrupt, a server's shutdown, a timeout.
_SIGNALS = tuple(int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name))


class DeferredSignals:
    """A context in which the handlers of SIGINT, SIGTERM and SIGALRM wait; they run, and may raise, when it is left.

    Python runs signal handlers between any two bytecodes of the main thread: one that raises between a change in the
    scheduler and its twin in Python would leave the two apart for good. Other threads run no handlers, so there it
    does nothing. Contexts may be nested; one object serves one context at a time.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[int, Any]] = []
        self._arrived: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = _get_handler(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    _set_handler(number, self._note)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handlers = dict(self._handlers)
        for number, handler in reversed(self._handlers):  # SIGINT last: from then on this very function may be cut
            _set_handler(number, handler)
        self._handlers = []
        arrived, self._arrived = self._arrived, []
        for number, frame in arrived:
            handlers[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((number, frame))
