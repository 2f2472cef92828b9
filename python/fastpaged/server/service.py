"""Service: what every route of one server shares."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError, QueueOverflowError
from fastpaged.server.errors import ApiError, shutting_down

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import Request

    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.engine.heartbeat import Progress
    from fastpaged.kv_snapshot import KVSplit
    from fastpaged.server.request_report import Reader
    from fastpaged.server.settings import ServerSettings

_MOST_UNKNOWN = 100  # fields: a log is not to be filled from outside


class Service:
    """An engine, how it is served, and whether it is still. Of the event loop's thread alone."""

    def __init__(self, engine: AsyncLLMEngine, settings: ServerSettings, model: str) -> None:
        """model: the name of the engine's model, for requests if the settings have no other."""
        self.engine = engine
        self.settings = settings
        self.model = model
        self.model_names = settings.served_model_names or (model,)
        self.created = int(time.time())
        self.calls: dict[str, list[str]] = {}  # in flight, by id: the ids of their requests in the engine
        self.http_requests: Counter[tuple[str, int]] = Counter()  # answered, by route and status
        self.slots: Mapping[str, KVSplit] = {}  # by tier, as last seen
        self._unknown_fields: set[str] = set()  # of requests, of which the log has told
        self._idle = asyncio.Event()
        self._idle.set()
        self.readers: list[Reader] = []  # of what became of each request
        self.unwanted: set[str] = set()  # calls in flight that were aborted
        self.is_draining = False  # no new ones are let in

    @classmethod
    def of(cls, request: Request) -> Service:
        """Of the app that a request came to."""
        service: Service = request.app.state.service
        return service

    def check_model(self, name: str | None) -> str:
        """What the answer calls it; None is the model there is. ApiError 404 for another."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            raise ApiError(404, f"The model `{name:.200}` does not exist.", param="model")
        return name

    def note_unknown(self, names: Iterable[str]) -> None:
        """Fields of a request that were let pass unread: the log tells of each once, and of so many at all."""
        for name in names:
            if len(self._unknown_fields) < _MOST_UNKNOWN and name not in self._unknown_fields:
                self._unknown_fields.add(name)
                logging.getLogger(__name__).warning("a request's field %.100r is not known here; it is ignored", name)

    @cached_property
    def fingerprint(self) -> str:
        """Of all that an answer's bits depend on beside the request: two servers with the same one answer alike."""
        return f"fp_{hashlib.sha256(self.engine.arithmetic.encode()).hexdigest()[:12]}"

    @property
    def num_in_flight(self) -> int:
        """Calls that were let in and not answered to the end."""
        return len(self.calls)

    def begin(self, call: str) -> list[str]:
        """Lets a call in, which is in flight until end() is told: draining waits for it. To the list that comes back
        its requests of the engine are to be added; there are none while its prompts are made.

        Raises what check_open() does, and InvalidRequestError if one of that name is there already.
        """
        self.check_open()
        if call in self.calls:
            raise InvalidRequestError(f"request_id must be new, got {call!r}, which is still unfinished")
        engine_ids: list[str] = []
        self.calls[call] = engine_ids
        self._idle.clear()
        return engine_ids

    def end(self, call: str, engine_ids: list[str]) -> None:
        """Nothing is done for it any more. engine_ids: what begin() gave; a call that has ended already may be followed
        by another of its name."""
        if self.calls.get(call) is engine_ids:
            del self.calls[call]
            self.unwanted.discard(call)
            if not self.calls:
                self._idle.set()

    async def abort(self, calls: Iterable[str]) -> None:
        """Ends calls in flight: what of them the engine has, and what it is still to have."""
        found = [call for call in calls if call in self.calls]
        self.unwanted.update(found)
        await self.engine.abort([engine_id for call in found for engine_id in self.calls[call]])

    def calls_named(self, name: str) -> list[str]:
        """The calls in flight of that id, with or without the prefix of their kind."""
        return [call for call in (name, f"cmpl-{name}", f"chatcmpl-{name}") if call in self.calls]

    def condition(self) -> tuple[str, Progress]:
        """ "ok", "stalled", "draining" or "dead", and how the engine advances."""
        progress = self.engine.progress()
        if self.engine.errored or self.engine.is_stopped:
            return "dead", progress
        if progress.is_stalled(self.settings.stall_threshold):
            return "stalled", progress
        return "draining" if self.is_draining else "ok", progress

    async def until_idle(self) -> None:
        """Until nothing is in flight."""
        await self._idle.wait()

    def check_open(self) -> None:
        """ApiError 503 while the server drains, QueueOverflowError where too much waits: at once, for the engine is not
        asked in the middle of a step."""
        if self.is_draining:
            raise shutting_down()
        try:
            self.engine.check_admission()
        except QueueOverflowError:
            if self.engine.stats is not None:
                self.engine.stats.note_rejected_early("queue_full")
            raise
