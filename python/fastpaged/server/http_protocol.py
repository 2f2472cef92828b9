"""HttpProtocol: one connection of HTTP/1.1, with limits in size and in time on what a client may make of it."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastpaged.server.errors import ApiError

if TYPE_CHECKING:
    import asyncio

    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from fastpaged.server.settings import ServerSettings

_WRITE_BUFFER = 64 << 10  # bytes that wait for a slow reader before the answer does
_KERNEL_BUFFER = 128 << 10  # the same in the kernel, which doubles it
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """Beyond what uvicorn's does: a head may be so large and come so slowly, a connection may be silent so long, and a
    reader that takes nothing of its answer is gone after a while.

    One timer for a connection: it looks at what the connection waits for now, and since when.
    """

    settings: ServerSettings  # of the class that made_for() makes

    @classmethod
    def made_for(cls, settings: ServerSettings) -> type[HttpProtocol]:
        """A class with these limits."""
        return type("HttpProtocol", (cls,), {"settings": settings})

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._head_ends = True  # no head has begun that has not come whole
        self._ignores = False  # what comes: there is a request to be answered first, or it was refused
        self._since = time.monotonic()  # when it last became otherwise what is waited for
        self._unsent = 0  # num_unsent as last seen
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(503, "the server has as many connections as it takes")
            return
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        listener = transport.get_extra_info("socket")
        if listener is not None:  # else the kernel gives megabytes to each reader who is slow enough
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
        self._since = time.monotonic()
        self._timer = self.loop.call_later(self._first_look, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """From the client. What comes behind a whole request before that is answered is not read, nor is it kept: the
        connection ends with the answer. So it is always seen when a client leaves."""
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and not cycle.more_body:
            cycle.keep_alive = False
            return
        if not is_answering:
            if self._head_ends:  # the next request begins
                self._head_ends, self._head_bytes, self._since = False, 0, time.monotonic()
            self._head_bytes += len(data)
            data = _without_upgrade(data)
        super().data_received(data)
        is_too_large = self._head_bytes > self.settings.max_header_bytes
        if not self._head_ends and is_too_large and not self.transport.is_closing():
            self._refuse(431, f"the head of a request must be at most {self.settings.max_header_bytes} bytes")

    def on_headers_complete(self) -> None:
        """A head has come."""
        if self.cycle is not None and not self.cycle.response_complete:  # in one piece with the request before
            self._ignores, self.cycle.keep_alive = True, False
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.settings.max_header_bytes:
            self._refuse(431, f"the head of a request must be at most {self.settings.max_header_bytes} bytes")
            self._ignores = True
            return
        self._head_ends = True
        self._since = time.monotonic()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of it has come."""
        if not self._ignores:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come whole."""
        if not self._ignores:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer was given."""
        self._head_ends, self._head_bytes, self._since = True, 0, time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP."""
        self._refuse(400, "this is no HTTP request")

    @property
    def num_unsent(self) -> int:
        """Bytes of answers that the kernel has not taken yet."""
        return self.transport.get_write_buffer_size()

    @property
    def _first_look(self) -> float:
        return min(self.settings.read_timeout, self.settings.send_timeout)

    def _look(self) -> None:
        """Whether what is waited for has taken too long: that a reader takes what there is for him, be his answer at
        its end and the connection closed or not, or else a head that has not come whole, or not begun."""
        self._timer = None
        now, unsent = time.monotonic(), self.num_unsent
        if unsent != self._unsent:
            self._unsent, self._since = unsent, now
        if unsent > 0:
            if now - self._since >= self.settings.send_timeout:
                self.transport.abort()
                return
        elif self.transport.is_closing():
            return
        elif self._head_ends and self.cycle is not None:
            self._since = now
        elif now - self._since >= self.settings.read_timeout:
            self._refuse(408, f"a request's head must come within {self.settings.read_timeout:g} s")
        self._timer = self.loop.call_later(self._first_look / 4, self._look)

    def _refuse(self, status: int, message: str) -> None:
        """Answers on the spot, and hangs up."""
        if self.transport.is_closing():
            return
        body = json.dumps(ApiError(status, message).body).encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """Of a head: what a client offers to speak instead (Java's and curl's do so, with HTTP/2) is let pass unread, for
    the parser takes the body of such a request for words in that other language."""
    if _UPGRADE.search(data) is None:
        return data
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + body
