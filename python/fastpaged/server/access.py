"""Access: who has no key gets nothing but /health."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_OPEN = ("/health",)  # without what a caller could ask for


class Access:
    """An ASGI middleware. A key comes as "Authorization: Bearer KEY"; which of the keys is wrong, and by how much, is
    not to be told from how long the answer takes."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], root_path: str = "") -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._open = {root_path + path for path in _OPEN} | set(_OPEN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        if scope["type"] == "http" and self._keys and scope["path"] not in self._open and not self._has_key(scope):
            refusal = JSONResponse({"error": "Unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]
                return scheme.lower() == b"bearer" and any(matches)
        return False
