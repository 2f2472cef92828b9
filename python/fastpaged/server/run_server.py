"""Serves an engine over HTTP until the process is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from email.utils import formatdate
from typing import TYPE_CHECKING

import uvicorn

from fastpaged.errors import InvalidRequestError
from fastpaged.server.app import make_app
from fastpaged.server.http_protocol import HttpProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from fastapi import FastAPI

    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.server.service import Service
    from fastpaged.server.settings import ServerSettings

_LAST_WORDS = 5.0  # seconds that aborted streams have to reach their readers
_CLEARING = 5.0  # seconds that tasks have to end whose clients are gone
_SHORT = 0.02  # seconds between two looks, at an end only


class Server(uvicorn.Server):
    """Ends in three steps: no new requests, then none at all, then no connections.

    The first signal begins that, a second one leaves the first step at once.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._told = asyncio.Event()  # to end, once or more
        self._again = asyncio.Event()
        self._ends_by = 0.0  # on time.monotonic()'s clock, once no more is waited for than last words

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Of a signal, on the main thread."""
        self.end()

    def end(self) -> None:
        """Begins to drain; the second time, aborts. From any thread or signal handler."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        (self._again if self._told.is_set() else self._told).set()
        self._service.is_draining = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until it has ended."""
        self._loop = asyncio.get_running_loop()  # before a signal may ask for it
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        uds = self._service.settings.uds
        self._file = None if uds is None else os.stat(uds).st_ino
        service = self._service
        logging.getLogger(__name__).info("serving %s on %s", service.model_names[0], self._places())

    def _places(self) -> str:
        if self._service.settings.uds is not None:
            return self._service.settings.uds
        scheme = "https" if self.config.ssl is not None else "http"
        names = [listener.getsockname() for server in self.servers for listener in server.sockets]
        return ", ".join(
            f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host, port, *_ in names
        )

    async def main_loop(self) -> None:
        """Waits for the end. The date of answers is made anew once a second while there are any."""
        dates = asyncio.ensure_future(self._keep_date())
        try:
            await self._told.wait()
            await self._drain()
        finally:
            dates.cancel()
            self.should_exit = True

    async def _keep_date(self) -> None:
        while True:
            date = formatdate(time.time(), usegmt=True).encode()
            self.server_state.default_headers = [(b"date", date), *self.config.encoded_headers]
            await asyncio.sleep(1.0)

    async def _drain(self) -> None:
        service, log = self._service, logging.getLogger(__name__)
        timeout = service.settings.shutdown_timeout
        log.info("draining: %d requests in flight have %g s to finish", service.num_in_flight, timeout)
        idle = asyncio.ensure_future(self._until_answered())
        again = asyncio.ensure_future(self._again.wait())
        await asyncio.wait({idle, again}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        num_cut = service.num_in_flight
        self._ends_by = time.monotonic() + _LAST_WORDS
        if num_cut > 0:
            await service.abort(list(service.calls))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(idle), _LAST_WORDS)
        for task in (idle, again):
            task.cancel()
        log.info("drained: %s", "all requests were finished" if num_cut == 0 else f"{num_cut} requests were cut short")

    async def _until_answered(self) -> None:
        """Until nothing is in flight, and all answers are on their way."""
        await self._service.until_idle()
        while any(connection.num_unsent > 0 for connection in self._connections):
            await asyncio.sleep(_SHORT)

    @property
    def _connections(self) -> list[HttpProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, HttpProtocol)]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No more connections; those that are there get what is in their buffers, and are closed."""
        self._remove_file()
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in self._connections:
            connection.shutdown()
        while (self.server_state.connections or self.server_state.tasks) and time.monotonic() < self._ends_by:
            await asyncio.sleep(_SHORT)
        for connection in self._connections:
            connection.transport.abort()
        if self.server_state.tasks:  # who learn of it
            await asyncio.wait(set(self.server_state.tasks), timeout=_CLEARING)
        await self.lifespan.shutdown()

    def _remove_file(self) -> None:
        """That of the unix socket, unless another server has put its own in its place."""
        uds = self._service.settings.uds
        with contextlib.suppress(FileNotFoundError):
            if uds is not None and os.stat(uds).st_ino == self._file:
                os.unlink(uds)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process goes on after it, and ends as it likes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def listening_sockets(settings: ServerSettings) -> list[socket.socket]:
    """Bound, and not listening yet, so that a port in use is known before a model is loaded; none for a unix socket.

    Raises InvalidRequestError naming what cannot be had.
    """
    if settings.uds is not None:
        _check_is_free(settings.uds)
        return []
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InvalidRequestError(
            f"host and port must be an address to listen on, got {host} and {port}: {error.strerror or error}"
        ) from error
    return [listener]


def _check_is_free(path: str) -> None:
    """A socket that is left of a server that is gone is free."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        raise InvalidRequestError(f"uds must be a path that nobody listens on, got {path!r}, where somebody does")


def make_server(app: FastAPI, settings: ServerSettings) -> Server:
    """A server that has not begun. See make_app()."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        uds=settings.uds,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        root_path=settings.root_path,
        http=HttpProtocol.made_for(settings),
        ws="none",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]  # seconds of any kind
    )
    return Server(config, app.state.service)


def run_server(
    engine: AsyncLLMEngine, settings: ServerSettings, model: str, sockets: Sequence[socket.socket] | None = None
) -> None:
    """Blocks. The engine is shut down when it returns. model: see Service. sockets: of listening_sockets().

    Raises OSError if it cannot listen.
    """
    traces = None
    try:
        app = make_app(engine, settings, model)
        if settings.otlp_traces_endpoint is not None:
            from fastpaged.server.otel_traces import RequestTraces  # an extra, which takes its time

            traces = RequestTraces(settings.otlp_traces_endpoint)
            app.state.service.readers.append(traces)
        make_server(app, settings).run(list(sockets) if sockets else None)
    finally:
        if traces is not None:
            traces.close()
        engine.shutdown()
