"""A server that says what a test wrote, byte by byte, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Says the answer to one POST; whether the connection is over then is Connection: close's to say.
Script = Callable[[socket.socket], None]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = "[DONE]"


@dataclass
class Scripted:
    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of the POSTs, in order
    heads: list[str] = field(default_factory=list)  # of all requests


def stream(*events: Any) -> Script:
    """A stream of these events: text as it is, all else as JSON."""

    def say(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"".join(map(event_bytes, events)))

    return say


def event_bytes(event: Any) -> bytes:
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()


def refuse(status: int, body: str) -> Script:
    def say(connection: socket.socket) -> None:
        data = body.encode()
        connection.sendall(
            f"HTTP/1.1 {status} No\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
        )

    return say


def text_event(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


def chat_event(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


@contextlib.contextmanager
def scripted_server(*scripts: Script) -> Iterator[Scripted]:
    """Answers each POST with the next script, and GET /v1/models with a model called tiny."""
    listener = socket.create_server(("127.0.0.1", 0))
    scripted = Scripted(f"http://127.0.0.1:{listener.getsockname()[1]}")
    remaining, threads = iter(scripts), []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError, BrokenPipeError):
            head, body = _request(connection)
            if not head:
                return
            scripted.heads.append(head)
            if head.startswith("GET "):
                models = '{"data": [{"id": "tiny"}]}'
                answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(models)}\r\nConnection: close\r\n\r\n{models}"
                connection.sendall(answer.encode())
            else:
                scripted.bodies.append(json.loads(body))
                next(remaining)(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed: the test is over
            while True:
                thread = threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True)
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield scripted
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (acceptor, *threads):
            thread.join(30)


def _request(connection: socket.socket) -> tuple[str, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return "", b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65536)
    return head.decode(), body
