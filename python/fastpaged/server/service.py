"""Service: what every route of one server shares."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

from fastpaged.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import Request

    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.server.settings import ServerSettings


class Service:
    """An engine, how it is served, and whether it is still. Of the event loop's thread alone."""

    def __init__(self, engine: AsyncLLMEngine, settings: ServerSettings, model: str) -> None:
        """model: the name of the engine's model, for requests if the settings have no other."""
        self.engine = engine
        self.settings = settings
        self.model = model
        self.model_names = settings.served_model_names or (model,)
        self.created = int(time.time())
        self.num_in_flight = 0  # requests for generation that were let in and not answered to the end
        self._idle = asyncio.Event()
        self._idle.set()
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

    @property
    def fingerprint(self) -> str:
        """Of all that an answer's bits depend on beside the request: two servers with the same one answer alike."""
        return f"fp_{hashlib.sha256(self.engine.arithmetic.encode()).hexdigest()[:12]}"

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """While a request is generated for. Draining waits for all of them."""
        self.num_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_in_flight -= 1
            if self.num_in_flight == 0:
                self._idle.set()

    async def until_idle(self) -> None:
        """Until nothing is in flight."""
        await self._idle.wait()

    def check_open(self) -> None:
        """ApiError 503 while the server drains."""
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", headers={"Retry-After": "1"})
