"""Requests of a load over real sockets: what goes out, what comes back, and everything that may go wrong between."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from client.scripted import DONE, HEAD, Script, chat_event, refuse, scripted_server, stream, text_event

from fastpaged.client.address import Address
from fastpaged.client.bench_request import BenchRequest
from fastpaged.client.endpoint import ENDPOINTS
from fastpaged.client.sample import Sample
from fastpaged.client.sender import Sender

REQUEST = BenchRequest("hi there", 2, 3)
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}


def send(url: str, endpoint: str = "completions", *, count: int = 1, key: str | None = None) -> list[Sample]:
    async def main() -> list[Sample]:
        async with Sender(Address.of(url), ENDPOINTS[endpoint], {"model": "m", "temperature": 0}, key) as sender:
            return [await sender.send(REQUEST) for _ in range(count)]

    return asyncio.run(main())


def answer_of(script: Script) -> Sample:
    with scripted_server(script) as server:
        [sample] = send(server.url)
    return sample


def test_an_answer_is_read_to_its_end_and_timed() -> None:
    before = time.perf_counter()
    sample = answer_of(stream(text_event("a"), text_event("b", "stop"), USAGE, DONE))
    after = time.perf_counter()
    assert sample.error is None
    assert (sample.text, sample.num_input_tokens, sample.num_output_tokens) == (["a", "b"], 5, 9)
    assert before <= sample.sent <= sample.token_times[0] <= sample.token_times[1] == sample.ended <= after


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
def test_a_request_says_what_is_common_to_all_and_asks_for_a_stream_with_a_count(endpoint: str) -> None:
    with scripted_server(stream(chat_event("a", "stop"), DONE)) as server:
        send(server.url, endpoint, key="secret")
    said = {"messages": [{"role": "user", "content": "hi there"}]} if endpoint == "chat" else {"prompt": "hi there"}
    common = {"model": "m", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    assert server.bodies == [{**common, **said, "max_tokens": 3}]
    assert server.heads[0].startswith(f"POST {ENDPOINTS[endpoint].route} ")
    assert "authorization: bearer secret" in server.heads[0].lower()


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (refuse(503, '{"error": {"message": "full"}}'), "the server answered 503: full"),
        (stream(text_event("a"), {"error": {"message": "it fell"}}, DONE), "the server failed the request: it fell"),
        (stream(text_event("a")), "the answer broke off before its end"),
        (stream("no"), "the server sent an event that is no JSON object"),
    ],
)
def test_a_request_that_fails_says_why_and_when(script: Script, error: str) -> None:
    sample = answer_of(script)
    assert sample.error == error
    assert sample.sent < sample.ended


def test_a_connection_that_breaks_off_and_a_server_that_is_not_there_are_failures() -> None:
    def break_off(connection: socket.socket) -> None:
        connection.sendall(HEAD.replace(b"Connection", b"Transfer-Encoding: chunked\r\nConnection") + b"5\r\nda")

    assert answer_of(break_off).error
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    [sample] = send(url)
    assert sample.error is not None
    assert "connect" in sample.error.lower()


def test_a_connection_is_used_again_and_a_unix_socket_is_reached(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "a.sock"))
    listener.listen()
    bodies: list[Any] = []

    def serve() -> None:  # one connection
        connection, _ = listener.accept()
        with connection:
            for _ in range(2):
                body = b"data: " + json.dumps(text_event("a", "stop")).encode() + b"\n\ndata: [DONE]\n\n"
                data = b""
                while not data.endswith(b"}"):
                    data += connection.recv(65536)
                bodies.append(data)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        samples = send(f"unix:{tmp_path}/a.sock", count=2)
        thread.join(60)
    assert [sample.error for sample in samples] == [None, None]
    assert len(bodies) == 2
