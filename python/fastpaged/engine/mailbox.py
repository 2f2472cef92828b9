"""Mailbox: where one caller's coroutine finds its request's outputs, and the Postman who fills all of one loop's."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING

from fastpaged.engine.merge_outputs import merge_deltas
from fastpaged.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastpaged.outputs import RequestOutput


class Mailbox:
    """Holds what its reader has not taken: one output, or deltas that become one when they are taken. So a slow reader,
    or one whose event loop is held up, costs no more memory than the answer itself."""

    def __init__(self, postman: Postman, kind: RequestOutputKind) -> None:
        self.postman = postman
        self.is_unwanted = False  # its request was aborted, perhaps before it came to the engine
        self._adds_up = kind is RequestOutputKind.DELTA
        self._outputs: list[RequestOutput] = []  # this and _error: under the postman's lock
        self._error: Exception | None = None
        self._arrival = asyncio.Event()  # of the event loop's thread alone

    def put(self, letter: RequestOutput | Exception) -> None:
        """For the postman, who holds its lock. An exception is raised at the reader, once what came before it has been
        read."""
        if isinstance(letter, Exception):
            self._error = letter
        elif self._adds_up:
            self._outputs.append(letter)
        else:
            self._outputs = [letter]

    def ring(self) -> None:
        """On the event loop: there is something in it."""
        self._arrival.set()

    async def take(self) -> RequestOutput:
        """All that has come since the last call, as one output; waits for the first."""
        while True:
            with self.postman.lock:
                outputs, self._outputs = self._outputs, []
                error = self._error
            if outputs:
                return merge_deltas(outputs)
            if error is not None:
                raise error
            # What came since is still to be rung for: that happens on this thread.
            self._arrival.clear()
            await self._arrival.wait()


class Postman:
    """Brings letters from the engine's thread into the mailboxes of one event loop, which is woken once for all the
    letters of a step, and not again while it has not come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lock = threading.Lock()  # of the mailboxes' contents; never held for long
        self._loop = weakref.ref(loop)  # whoever reads there keeps it
        self._filled: set[Mailbox] = set()  # and not rung for yet

    def send(self, letters: Iterable[tuple[Mailbox, RequestOutput | Exception]]) -> None:
        """From any thread. RuntimeError if the loop is closed, or gone."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise RuntimeError("the event loop is closed, or gone")
        with self.lock:
            is_called = bool(self._filled)
            for mailbox, letter in letters:
                mailbox.put(letter)
                self._filled.add(mailbox)
        if not is_called:
            loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        with self.lock:
            filled, self._filled = self._filled, set()
        for mailbox in filled:
            mailbox.ring()
