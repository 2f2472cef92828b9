"""HttpCount: how many requests were answered, by route and status; and a line in the log for each that was refused."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fastpaged.server.service import Service

_GENERATING = ("/v1/completions", "/v1/chat/completions")


class HttpCount:
    """An ASGI middleware. A route is counted by its pattern, so that there are no more counters than routes."""

    def __init__(self, app: ASGIApp, service: Service, paths: set[str]) -> None:
        """service: whose counts are filled, by (route, status). paths: of all routes."""
        self._app = app
        self._service = service
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message["status"])
            await send(message)

        await self._app(scope, receive, counted)

    def _note(self, scope: Scope, status: int) -> None:
        path = scope["path"]
        route = str(getattr(scope.get("route"), "path", path if path in self._paths else "other"))
        self._service.http_requests[route, status] += 1
        if status < 400 or scope["method"] != "POST" or scope.get("state", {}).get("is_reported"):
            return
        stats = self._service.engine.stats
        if status == 400 and stats is not None and route in _GENERATING:
            stats.note_rejected_early("invalid")
        if self._service.settings.log_requests:
            client = scope.get("client")
            line = {"outcome": "refused", "route": route, "status": status, "client": client[0] if client else None}
            logging.getLogger("fastpaged.requests").info("%s", json.dumps(line))
