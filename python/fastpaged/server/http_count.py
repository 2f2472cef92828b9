"""HttpCount: how many requests were answered, by route and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HttpCount:
    """An ASGI middleware. A route is counted by its pattern, so that there are no more counters than routes."""

    def __init__(self, app: ASGIApp, counts: Counter[tuple[str, int]]) -> None:
        """counts: to be filled, by (route, status)."""
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._counts[route, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)
