"""EventStream: an answer in server-sent events."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from fastpaged.server.client_watch import ClientGoneError, while_client_stays
from fastpaged.server.errors import api_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_LARGE = 16 << 10  # bytes of an event, of what a slow reader missed: others have their turn before the next one


compact = json.JSONEncoder(separators=(",", ":")).encode  # in ASCII, with no space


class EventStream(Response):
    """Sends events as they come and [DONE] behind the last; an error on the way is an event before that.

    The generator is closed at once when the client leaves. What it raises before its first event is the route's to
    answer with a status, so a route takes the first before it makes this response.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        try:
            with suppress(ClientGoneError):
                await while_client_stays(receive, self._send_all(send))
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for one in self._events:
                await send({"type": "http.response.body", "body": one, "more_body": True})
                if len(one) > _LARGE:
                    await asyncio.sleep(0)
        except Exception as error:
            await send({"type": "http.response.body", "body": _event(api_error(error).body), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


def _event(body: Mapping[str, Any]) -> bytes:
    return f"data: {compact(body)}\n\n".encode()
