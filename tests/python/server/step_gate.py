"""A served engine that goes step by step, and clients that leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from server.serving import Running

from fastpaged.engine.llm_engine import LLMEngine


def inner(server: Running) -> LLMEngine:
    return server.engine._thread.engine


def until(condition: Callable[[], bool]) -> None:
    """The time is a guard against a test that hangs."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


class StepGate:
    """Stops an engine between planning a step and computing it until it is let on."""

    def __init__(self, server: Running) -> None:
        self._permits = threading.Semaphore(0)
        self.num_let = 0  # steps that were computed, or are
        self._engine = inner(server)
        self._engine.on_planned = self._wait

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    def open(self) -> None:
        self._engine.on_planned = None
        self.let(1_000)

    def _wait(self) -> None:
        assert self._permits.acquire(timeout=60)
        self.num_let += 1


class RawClient:
    """One request over a bare socket, which may be left at any moment."""

    def __init__(self, url: str, body: dict[str, Any], path: str = "/v1/completions", receive_buffer: int = 0) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect((host, int(port)))
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + data)

    def read_until(self, marker: bytes) -> bytes:
        found = b""
        while marker not in found:
            part = self.socket.recv(65536)
            assert part, found
            found += part
        return found

    def leave(self) -> None:
        self.socket.close()
