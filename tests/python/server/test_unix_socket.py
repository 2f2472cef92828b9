"""A server on a unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server.serving import SETTINGS
from server.step_gate import until

from fastpaged import AsyncLLMEngine, EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.server.app import make_app
from fastpaged.server.run_server import Server, listening_sockets, make_server
from fastpaged.server.settings import ServerSettings


@contextlib.contextmanager
def serving(model: Path, path: Path) -> Iterator[tuple[Server, httpx.Client]]:
    settings = ServerSettings(uds=str(path))
    engine = AsyncLLMEngine(EngineConfig(model=str(model), **SETTINGS))
    assert listening_sockets(settings) == []
    server = make_server(make_app(engine, settings, "tiny"), settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=60) as client:
            yield server, client
    finally:
        server.end()
        thread.join(60)
        engine.shutdown()
        assert not thread.is_alive()


def test_it_is_there_while_the_server_is(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(tiny_llama, path) as (_, client):
        assert client.get("/health").json()["status"] == "ok"
        answer = client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
    assert not path.exists()


def test_one_that_somebody_listens_on_is_refused_and_one_left_behind_is_taken(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
        gone.listen()
    assert path.exists()
    with serving(tiny_llama, path) as (_, client):
        with pytest.raises(InvalidRequestError, match=r"uds must be a path that nobody listens on, got '.*s'"):
            listening_sockets(ServerSettings(uds=str(path)))
        assert client.get("/health").status_code == 200


def test_one_that_another_server_has_put_there_since_stays(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(tiny_llama, path) as (server, _), socket.socket(socket.AF_UNIX) as other:
        os.rename(path, tmp_path / "old")
        other.bind(str(path))
        other.listen()
        server.end()
        until(lambda: not server.servers[0].sockets)
    assert path.exists()
