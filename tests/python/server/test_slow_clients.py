"""Clients that say nothing, half of it, or read a byte at a time; and those that are killed."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.serving import Running, running_server
from server.step_gate import RawClient, StepGate, inner, until

from fastpaged.server.settings import ServerSettings

STREAM: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True, "seed": 3, "stream": True}
# Megabytes: more than the sockets between take.
LARGE: dict[str, Any] = STREAM | {"n": 16, "logprobs": 20, "max_tokens": 300}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connected(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=60)
    made.settimeout(60)
    return made


def text_of(server: Running, body: dict[str, Any] = STREAM) -> str:
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def read_to_the_end(client: socket.socket) -> bytes:
    found = b""
    while part := client.recv(65536):
        found += part
    return found


def is_idle(server: Running) -> bool:
    scheduler = inner(server).scheduler
    is_free = server.engine.progress().num_unfinished == 0 and scheduler.num_free_blocks == scheduler.num_blocks
    return is_free and not server.service.calls


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 408),
        (b"POST /v1/comp", 408),
        (HEAD, 408),
        (HEAD + b"Content-Length: 100\r\n\r\n", 408),
        (HEAD + b'Content-Length: 100\r\n\r\n{"prompt": ', 408),
        (HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n', 408),
        (b"what is this\r\n\r\n", 400),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nX: " + b"a" * 40000, 431),
        (b"GET /" + b"a" * 40000, 431),
        (HEAD + b"X: " + b"a" * 33000 + b"\r\n\r\n", 431),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_request_that_does_not_come_whole_is_answered_and_hung_up_on(
    tiny_llama: Path, sent: bytes, status: int
) -> None:
    with running_server(tiny_llama, ServerSettings(read_timeout=0.2)) as server:
        client = connected(server)
        client.sendall(sent)
        answer = read_to_the_end(client)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == status
        assert server.client.get("/health").status_code == 200


def test_silent_connections_keep_nobody_from_anything(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        alone = text_of(server)
        silent = [connected(server) for _ in range(200)]
        for client in silent[::2]:
            client.sendall(HEAD)
        assert text_of(server) == alone
        for client in silent:
            client.close()


NEXT = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def asked_ahead(server: Running, together: bool, more: bytes) -> socket.socket:
    """A request that is let in, and more behind it, in one piece with it or after that."""
    body = json.dumps(STREAM | {"stream": False}).encode()
    request = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    client = connected(server)
    client.sendall(request + more if together else request)
    until(lambda: len(server.service.calls) == 1)
    if not together:
        client.sendall(more)
    return client


@pytest.mark.parametrize("together", [False, True])
def test_a_client_that_sends_ahead_and_leaves_is_noticed(tiny_llama: Path, together: bool) -> None:
    with running_server(tiny_llama) as server:
        gate = StepGate(server)
        client = asked_ahead(server, together, NEXT)
        gate.let(2)
        client.close()
        until(lambda: not server.service.calls)
        gate.open()
        until(lambda: is_idle(server))


@pytest.mark.parametrize("together", [False, True])
def test_what_is_sent_ahead_ends_the_connection_with_the_answer(tiny_llama: Path, together: bool) -> None:
    with running_server(tiny_llama) as server:
        gate = StepGate(server)
        client = asked_ahead(server, together, NEXT if together else b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000)
        gate.open()
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                answer += part
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b'"finish_reason":"length"' in answer
        assert server.client.get("/health").status_code == 200


def test_a_connection_too_many_is_told_so(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(max_connections=3)) as server:
        held = [connected(server) for _ in range(3)]
        until(lambda: read_to_the_end(connected(server)).startswith(b"HTTP/1.1 503 "))
        for client in held:
            client.close()
        until(lambda: httpx.get(f"{server.url}/health").status_code == 200)


def test_slow_readers_get_all_of_it_and_hold_up_nobody(tiny_llama: Path) -> None:
    with running_server(tiny_llama, num_blocks=2048) as server:
        alone, whole = text_of(server), text_of(server, LARGE)
        slow = [RawClient(server.url, LARGE, receive_buffer=4096) for _ in range(2)]
        until(lambda: server.engine.progress().num_unfinished == 0 and len(server.service.calls) > 0)
        assert text_of(server) == alone
        for client in slow:
            data = client.read_until(b"data: [DONE]")
            events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
            joined = "".join(json.loads(event)["choices"][0]["text"] for event in events)
            assert sorted(joined) == sorted(whole)
            client.leave()
        until(lambda: is_idle(server))


def test_a_reader_who_takes_nothing_is_gone_after_a_while(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(send_timeout=0.2), num_blocks=1024) as server:
        stuck = RawClient(server.url, LARGE, receive_buffer=4096)
        until(lambda: len(server.service.calls) == 1)
        until(lambda: is_idle(server))
        with contextlib.suppress(ConnectionResetError):
            assert b"[DONE]" not in read_to_the_end(stuck.socket)
        stuck.leave()


def test_a_client_that_is_killed_is_gone_at_once(tiny_llama: Path) -> None:
    script = f"""
import httpx, sys
with httpx.stream("POST", sys.argv[1] + "/v1/completions", json={STREAM | {"max_tokens": 400}!r}, timeout=60) as answer:
    for line in answer.iter_lines():
        print(line, flush=True)
"""
    with running_server(tiny_llama) as server:
        alone = text_of(server)
        other: list[str] = []
        client = subprocess.Popen([sys.executable, "-c", script, server.url], stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        assert client.stdout.readline().startswith("data: ")
        asking = threading.Thread(target=lambda: other.append(text_of(server)))
        asking.start()
        client.kill()
        client.wait()
        client.stdout.close()
        asking.join()
        assert other == [alone]
        until(lambda: is_idle(server))


LONG_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a prompt of megabytes": ("/v1/completions", {"prompt": "a " * 900_000}),
    "prompts by the hundred thousand": ("/v1/completions", {"prompt": [[5]] * 300_000}),
    "messages by the ten thousand": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 30_000}),
    "names by the hundred thousand": ("/abort", {"request_id": ["x"] * 300_000}),
    "fields by the ten thousand": ("/v1/completions", {"prompt": "x", **{f"f{n}": 1 for n in range(50_000)}}),
    "a prefix of megabytes": ("/v1/cache/prefixes", {"prompt": "a " * 900_000}),
}


@pytest.mark.parametrize("what", LONG_BODIES)
def test_a_body_of_megabytes_is_refused_before_much_is_made_of_it(tiny_llama: Path, what: str) -> None:
    with running_server(tiny_llama) as server:
        encoded: list[int] = []
        backend = inner(server).tokenizer.encode

        def encode(text: str, **options: Any) -> list[int]:
            encoded.append(len(text))
            return backend(text, **options)

        inner(server).tokenizer.encode = encode  # type: ignore[method-assign]
        path, body = LONG_BODIES[what]
        assert server.client.post(path, json=body).status_code == 400
        assert sum(encoded) < 100_000


@pytest.mark.parametrize("name", ["Upgrade", "upgrade"])
def test_a_client_that_offers_to_speak_http_2_is_answered_as_any(tiny_llama: Path, name: str) -> None:
    with running_server(tiny_llama) as server:
        offer = {"Connection": f"{name}, HTTP2-Settings", name: "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
        body = STREAM | {"stream": False, "prompt": "\r\n\r\n\r\nupgrade: x"}
        answers = [server.client.post("/v1/completions", json=body, headers=head) for head in ({}, offer, offer)]
        texts = [answer.json()["choices"][0]["text"] for answer in answers]
        assert texts == [texts[0]] * 3
