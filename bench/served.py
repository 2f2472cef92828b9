"""A server in a process of its own, and the load of `fastpaged bench serve` on it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_GRACE = 60.0  # seconds for a server to end
_PATIENCE = 600.0  # seconds for a server to answer: some compile first


@contextlib.contextmanager
def served(
    command: Sequence[str], port: int, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Until /health is 200; what it prints goes nowhere. Terminated at the end, then killed."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})}
    )
    try:
        _until_healthy(process, port)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:  # no round is to run beside the last one's server
            process.kill()
            process.wait()


def fastpaged_command(model: str, port: int, *options: str) -> list[str]:
    """Of this environment."""
    return [sys.executable, "-m", "fastpaged", "serve", model, "--port", str(port), "--no-log-requests", *options]


def load(port: int, options: Sequence[str], cpu: int | None = None) -> dict[str, Any]:
    """What `fastpaged bench serve` measures. cpu: the one that the client keeps to."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "fastpaged", "bench", "serve", "--url", f"http://127.0.0.1:{port}"]
        subprocess.run(
            [*command, *options, "--save-result", str(result)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=None if cpu is None else lambda: os.sched_setaffinity(0, {cpu}),
        )
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found


def cpu_seconds(pid: int) -> float:
    """That a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"a server did not start: {process.args!r}")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"a server was not up after {_PATIENCE:g} s: {process.args!r}")
