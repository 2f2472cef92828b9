"""Unexpected: an error that nobody foresaw is an answer, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpaged.server.ascii_json import AsciiJSONResponse
from fastpaged.server.errors import api_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Unexpected:
    """An ASGI middleware. Answers 500 and writes to the log what happened; the connection stays. An answer that has
    begun cannot be taken back: then the server hangs up."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            known = api_error(error)
            await AsciiJSONResponse(known.body, known.status, known.headers)(scope, receive, send)
