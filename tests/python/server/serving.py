"""A server that runs beside a test: in its process, so that the test can look into the engine, or in one of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from fastpaged import AsyncLLMEngine, EngineConfig
from fastpaged.server.app import make_app
from fastpaged.server.run_server import Server, make_server
from fastpaged.server.service import Service
from fastpaged.server.settings import ServerSettings

SETTINGS: dict[str, Any] = {
    "isa": "scalar",
    "num_threads": 1,
    "num_blocks": 64,
    "block_size": 8,
    "disable_log_stats": False,
}


@dataclass
class Running:
    url: str
    engine: AsyncLLMEngine
    service: Service
    client: httpx.Client
    server: Server


@contextlib.contextmanager
def running_server(
    model: Path, settings: ServerSettings | None = None, engine: AsyncLLMEngine | None = None, **engine_settings: Any
) -> Iterator[Running]:
    """On a free port of the loopback, in a thread. The engine is shut down at the end."""
    used = ServerSettings() if settings is None else settings
    if engine is None:
        engine = AsyncLLMEngine(EngineConfig(model=str(model), **(SETTINGS | engine_settings)))
    app = make_app(engine, used, "tiny")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = make_server(app, used)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            yield Running(url, engine, app.state.service, client, server)
    finally:
        if server.started and thread.is_alive():
            server.end()
            server.end()
        thread.join(30)
        engine.shutdown()


@contextlib.contextmanager
def server_process(arguments: Sequence[str], port: int | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`fastpaged serve ARGUMENTS`: the process, and its URL once it answers. Killed at the end if it is still there."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1] if port is None else port
    url = f"http://127.0.0.1:{free}"
    process = subprocess.Popen(
        [sys.executable, "-m", "fastpaged", "serve", *arguments, "--port", str(free)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FASTPAGED_CACHE": ""},
    )
    try:
        wait_until_it_answers(process, url)
        yield process, url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def wait_until_it_answers(process: subprocess.Popen[str], url: str) -> None:
    while True:
        assert process.poll() is None, process.communicate()[0]
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/v1/models", timeout=5).status_code in (200, 401):
                return
        time.sleep(0.05)
