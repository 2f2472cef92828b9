"""llama.cpp: its llama-server on loopback, one slot for each request of a workload, no prompt reused.

Where requests share a prefix: a few slots that reuse what they hold, for a slot does not know what others have
computed; they are erased before each run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from typing import Any

import adapter

_MAX_SLOTS = 64
_SLOTS_THAT_SHARE = 4  # each computes the prefix once; with fewer, fewer answers are decoded together
_SECONDS_TO_START = 300
_SECONDS_TO_ANSWER = 3600
_CONTEXT_STEP = 256  # its contexts are multiples of it


class LlamaCpp(adapter.Engine):
    """A server for each shape of workload: its context is cut evenly among the slots."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._server: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._num_slots = 0
        self._shares = False
        self._folder = tempfile.TemporaryDirectory()  # the server erases slots only if it might save them too

    def prepare(self, requests: adapter.Requests) -> str:
        """Starts a server with a slot for each request, wide enough for the longest."""
        self._stop()
        self._shares = adapter.share_a_prefix(requests)
        self._num_slots = num_slots = min(len(requests), _SLOTS_THAT_SHARE if self._shares else _MAX_SLOTS)
        longest = max(len(request["prompt"]) + request["out"] for request in requests) + 8
        width = -(-longest // _CONTEXT_STEP) * _CONTEXT_STEP
        self._port = _free_port()
        threads = str(self._args.threads)
        command = [self._args.server, "-m", self._args.gguf, "-t", threads, "-tb", threads, "-np", str(num_slots)]
        command += ["-c", str(num_slots * width), "-no-kvu", "-b", "2048", "-ub", "512", "-fa", "auto"]
        command += [
            "--slot-save-path",
            self._folder.name,
            "--cache-ram",
            "0",
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
        ]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2)
        self._wait_until_healthy()
        return f"llama.cpp {self._version()} (llama-server, {os.path.basename(self._args.gguf)}, {num_slots} slots)"

    def fresh(self) -> None:
        """Erases the slots, where they are reused."""
        for slot in range(self._num_slots if self._shares else 0):
            self._post(f"/slots/{slot}?action=erase", {}).read()

    def run(self, requests: adapter.Requests) -> adapter.Run:
        """One connection for each request; the answers of a lone one are streamed, to see its first token."""
        begin = time.perf_counter()
        if len(requests) == 1:
            tokens, ttft_s = self._stream(requests[0])
            return adapter.Run(time.perf_counter() - begin, ttft_s, [tokens])
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(self._ask, requests))
        return adapter.Run(time.perf_counter() - begin, None, answers)

    def _ask(self, request: dict[str, Any]) -> list[int]:
        tokens: list[int] = json.loads(self._complete(request, stream=False).read())["tokens"]
        return tokens

    def _stream(self, request: dict[str, Any]) -> tuple[list[int], float | None]:
        begin = time.perf_counter()
        ttft_s, tokens = None, []
        for line in self._complete(request, stream=True):
            if line.startswith(b"data: "):
                ttft_s = time.perf_counter() - begin if ttft_s is None else ttft_s
                part = json.loads(line[len(b"data: ") :])
                tokens += part.get("tokens", [])
                if part.get("stop"):
                    break
        return tokens, ttft_s

    def _complete(self, request: dict[str, Any], *, stream: bool) -> http.client.HTTPResponse:
        body = {
            "prompt": request["prompt"],
            "n_predict": request["out"],
            "ignore_eos": True,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": self._shares,
            "return_tokens": True,
            "stream": stream,
        }
        return self._post("/completion", body)

    def _post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS_TO_ANSWER)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise SystemExit(f"llama-server answered {response.status}: {response.read().decode(errors='replace')}")
        return response

    def _wait_until_healthy(self) -> None:
        assert self._server is not None
        end = time.monotonic() + _SECONDS_TO_START
        while time.monotonic() < end:
            if self._server.poll() is not None:
                raise SystemExit(f"llama-server ended with {self._server.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == http.client.OK:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"llama-server was not ready within {_SECONDS_TO_START} s")

    def _version(self) -> str:
        done = subprocess.run([self._args.server, "--version"], capture_output=True, text=True)
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("version:")]
        return lines[0].split(":", 1)[1].strip() if lines else "of unknown version"

    def _stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    options = adapter.parser("llama.cpp behind the adapters' protocol")
    options.add_argument("--server", required=True, help="llama-server")
    options.add_argument("--gguf", required=True, help="the model, in bfloat16")
    arguments = options.parse_args()
    engine = LlamaCpp(arguments)
    try:
        adapter.serve(lambda: engine)
    finally:
        engine._stop()
