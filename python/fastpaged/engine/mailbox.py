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
    """Holds what its reader has not taken: one output, or deltas that become one when they are taken. So a slow reader
    costs no more memory than the answer itself. Touched by its event loop's thread alone."""

    def __init__(self, postman: Postman, kind: RequestOutputKind) -> None:
        self.postman = postman
        self._adds_up = kind is RequestOutputKind.DELTA
        self._outputs: list[RequestOutput] = []
        self._error: Exception | None = None
        self._arrival = asyncio.Event()

    def put(self, letter: RequestOutput | Exception) -> None:
        """An exception is raised at the reader, once what came before it has been read."""
        if isinstance(letter, Exception):
            self._error = letter
        elif self._adds_up:
            self._outputs.append(letter)
        else:
            self._outputs = [letter]
        self._arrival.set()

    async def take(self) -> RequestOutput:
        """All that has come since the last call, as one output; waits for the first."""
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._arrival.clear()
            await self._arrival.wait()
        outputs, self._outputs = self._outputs, []
        return merge_deltas(outputs)


class Postman:
    """Brings letters from the engine's thread into the mailboxes of one event loop: woken once for all the letters of a
    step, and not again while it has not come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # whoever reads there keeps it
        self._lock = threading.Lock()
        self._letters: list[tuple[Mailbox, RequestOutput | Exception]] = []

    def send(self, letters: Iterable[tuple[Mailbox, RequestOutput | Exception]]) -> None:
        """From any thread. RuntimeError if the loop is closed, or gone."""
        loop = self._loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        with self._lock:
            is_called = bool(self._letters)
            self._letters.extend(letters)
        if not is_called:
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            letters, self._letters = self._letters, []
        for mailbox, letter in letters:
            mailbox.put(letter)
