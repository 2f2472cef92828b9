"""From a cold process to the first token: fastpaged and llama.cpp in turn.

    python bench/cold_start.py --model MODEL --llama-server PATH --gguf FILE [--rounds 9] [--threads 2] [--output FILE]

"Cold" is the process; the files are in the system's cache after a first round that is not counted. fastpaged is timed
from before `fastpaged generate` is started to its first byte of text; llama.cpp from before its server is started
(without its warm-up run) to the first token streamed, with a request sent as soon as it listens. Both end after it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "The capital of France is"
_SECONDS_TO_ANSWER = 300
_POLL_SECONDS = 0.002


def fastpaged_seconds(args: argparse.Namespace) -> float:
    command = [sys.executable, "-m", "fastpaged", "generate", "--model", args.model, "--prompt", PROMPT]
    command += ["--temperature", "0", "--max-tokens", "16", "--num-threads", str(args.threads)]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
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

    seconds: dict[str, list[float]] = {"fastpaged": [], "llama.cpp": []}
    for index in range(args.rounds + 1):
        for name, measure in (("fastpaged", fastpaged_seconds), ("llama.cpp", llama_seconds)):
            elapsed = measure(args)
            print(f"round {index} of {args.rounds}: {name} {elapsed:.3f} s", file=sys.stderr, flush=True)
            if index > 0:
                seconds[name].append(elapsed)
    behind = statistics.median(a - b for a, b in zip(seconds["fastpaged"], seconds["llama.cpp"], strict=True))
    for name, times in seconds.items():
        print(f"{name:<10} {statistics.median(times):.3f} s [{min(times):.3f}-{max(times):.3f}]")
    print(f"fastpaged less llama.cpp, median of the rounds: {behind:+.3f} s   (promised: at most +0.5 s)")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    figures = {"model": Path(args.model).name, **seconds, "difference_s": behind}
    args.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
