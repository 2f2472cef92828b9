"""From a cold process to the first token: fastpaged and llama.cpp in turn.

    python bench/cold_start.py --model MODEL --llama-server PATH --gguf FILE [--rounds 9] [--threads 2] [--output FILE]

"Cold" is the process; the files are in the system's cache after a first round that is not counted. fastpaged is timed
from before `fastpaged generate` is started to its first byte of text: at its first start with a model, which packs the
weights and then keeps them, and at a later one, which maps what was kept. llama.cpp is timed from before its server is
started (without its warm-up run) to the first token streamed, with a request sent as soon as it listens. All end after
it; each round begins with another one. What fastpaged keeps, as many bytes as the weights, lies in temporary folders.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = "The capital of France is"
FIRST, LATER, LLAMA = "fastpaged, first start", "fastpaged, later start", "llama.cpp"
_SECONDS_TO_ANSWER = 300
_POLL_SECONDS = 0.002


def first_start_seconds(args: argparse.Namespace) -> float:
    """With nothing kept of an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        return fastpaged_seconds(args, folder)


def fastpaged_seconds(args: argparse.Namespace, cache: str) -> float:
    """cache: the folder of packed weights. Ends when they are written, where there were none."""
    command = [sys.executable, "-m", "fastpaged", "generate", "--model", args.model, "--prompt", PROMPT]
    command += ["--temperature", "0", "--max-tokens", "16", "--num-threads", str(args.threads)]
    environment = {**os.environ, "FASTPAGED_CACHE": cache}
    begin = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(1)
        elapsed = time.perf_counter() - begin
        process.stdout.read()
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.returncode != 0 or not first:
        raise SystemExit(f"fastpaged ended with {process.returncode}: {said[-1] if said else 'without a word'}")
    return elapsed


def llama_seconds(args: argparse.Namespace) -> float:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    threads = str(args.threads)
    command = [args.llama_server, "-m", args.gguf, "-t", threads, "-tb", threads, "-np", "1", "-c", "512"]
    command += ["--no-warmup", "--host", "127.0.0.1", "--port", str(port)]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return _first_token(process, port) - begin
        finally:
            process.kill()


def _first_token(server: subprocess.Popen[bytes], port: int) -> float:
    """When it came. Asked again and again: a server that is still loading refuses, or answers 503."""
    body = json.dumps({"prompt": PROMPT, "n_predict": 16, "temperature": 0.0, "stream": True})
    end = time.perf_counter() + _SECONDS_TO_ANSWER
    while time.perf_counter() < end:
        if server.poll() is not None:
            raise SystemExit(f"llama-server ended with {server.returncode}")
        with contextlib.suppress(ConnectionError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS_TO_ANSWER)
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == http.client.OK:
                while not response.readline().startswith(b"data: "):
                    pass
                return time.perf_counter()
        time.sleep(_POLL_SECONDS)
    raise SystemExit(f"llama-server gave no token within {_SECONDS_TO_ANSWER} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--gguf", required=True, help="the same model, in bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results") / "cold_start.json")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as cache:
        starts: dict[str, Callable[[], float]] = {
            FIRST: lambda: first_start_seconds(args),
            LATER: lambda: fastpaged_seconds(args, cache),
            LLAMA: lambda: llama_seconds(args),
        }
        seconds = in_turn(starts, args.rounds)
    behind = {name: median_difference(seconds[name], seconds[LLAMA]) for name in (FIRST, LATER)}
    for name, times in seconds.items():
        print(f"{name:<24} {statistics.median(times):.3f} s [{min(times):.3f}-{max(times):.3f}]")
    for name, difference in behind.items():
        print(f"{name} less llama.cpp, median of the rounds: {difference:+.3f} s   (promised: at most +0.5 s)")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    figures = {"model": Path(args.model).name, **seconds, "difference_s": behind}
    args.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def in_turn(starts: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each, by round, after one that is not counted. Each round begins with another one."""
    names = list(starts)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 1):
        first = index % len(names)
        for name in [*names[first:], *names[:first]]:
            elapsed = starts[name]()
            print(f"round {index} of {rounds}: {name} {elapsed:.3f} s", file=sys.stderr, flush=True)
            if index > 0:
                seconds[name].append(elapsed)
    return seconds


def median_difference(ours: list[float], theirs: list[float]) -> float:
    """Of the times of one round each."""
    return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
