"""How a server ends beside its requests: what answers were given reaches who reads them, and nobody holds it up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from server.serving import Running, running_server
from server.step_gate import RawClient, until

from fastpaged.server.settings import ServerSettings

# Megabytes, of which the kernel takes a part.
LARGE: dict[str, Any] = {
    "prompt": [5, 6, 7],
    "n": 16,
    "logprobs": 20,
    "max_tokens": 300,
    "ignore_eos": True,
    "seed": 3,
}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


def is_answered(server: Running) -> bool:
    """To the last byte, which the server still has."""
    answers = server.server.server_state
    return not server.service.calls and any(
        connection.cycle is not None and connection.cycle.response_complete and connection.num_unsent > 0  # type: ignore[union-attr]
        for connection in list(answers.connections)
    )


def has_ended(server: Running) -> bool:
    state = server.server.server_state
    return not server.server.servers[0].sockets and not state.connections and not state.tasks


def test_an_answer_that_waits_for_a_slow_reader_reaches_him_when_the_server_ends(tiny_llama: Path) -> None:
    with running_server(tiny_llama, num_blocks=1024) as server:
        reader = RawClient(server.url, LARGE, receive_buffer=4096)
        until(lambda: is_answered(server))
        server.server.end()
        head, _, body = reader.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        while len(body) < size and (part := reader.socket.recv(65536)):
            body += part
        assert len(json.loads(body)["choices"]) == 16
        reader.leave()
        until(lambda: not server.server.server_state.connections)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_nobody_takes_goes_after_a_while_though_it_is_complete(tiny_llama: Path, stream: bool) -> None:
    settings = ServerSettings(send_timeout=0.2, keep_alive_timeout=0.01)
    with running_server(tiny_llama, settings, num_blocks=1024) as server:
        body = LARGE | {"stream": stream} | ({"n": 4, "logprobs": None, "max_tokens": 500} if stream else {})
        stuck = RawClient(server.url, body, receive_buffer=4096)
        until(lambda: len(server.service.calls) == 1)
        until(lambda: not server.service.calls)
        until(lambda: not server.server.server_state.connections)
        stuck.leave()


def test_nobody_who_is_silent_or_deaf_holds_up_the_end(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastpaged.server.run_server._LAST_WORDS", 0.1)
    with running_server(tiny_llama, ServerSettings(shutdown_timeout=0.1), num_blocks=1024) as server:
        host, port = server.url.removeprefix("http://").split(":")
        silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(4)]
        silent[1].sendall(HEAD[:40])
        silent[2].sendall(HEAD)
        silent[3].sendall(HEAD + b'{"prompt')
        deaf = [RawClient(server.url, LARGE | {"stream": stream}, receive_buffer=4096) for stream in (False, True)]
        until(lambda: len(server.server.server_state.connections) >= 6)
        until(lambda: is_answered(server) or len(server.service.calls) == 1)
        server.server.end()
        until(lambda: has_ended(server))
        for client in (*silent, *(one.socket for one in deaf)):
            with contextlib.suppress(ConnectionResetError):
                while client.recv(65536):
                    pass
            client.close()
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]  # nobody had to be cancelled


def test_a_head_that_is_too_large_and_whole_is_no_request(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(max_header_bytes=1000)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)), timeout=60)
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2000 + b"\r\nContent-Length: 2\r\n\r\n{}")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 431 ")
        state = server.server.server_state
        until(lambda: not state.connections and not state.tasks)
        assert not server.service.http_requests
        client.close()


def test_a_server_that_is_told_to_end_before_it_listens_does(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as other:
        from fastpaged.server.app import make_app
        from fastpaged.server.run_server import make_server

        settings = ServerSettings(port=0)
        server = make_server(make_app(other.engine, settings, "tiny"), settings)
        startup = server.startup

        async def told_first(sockets: list[socket.socket] | None = None) -> None:
            server.handle_exit(15, None)
            await asyncio.sleep(0)
            await startup(sockets)

        server.startup = told_first  # type: ignore[method-assign]
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
