"""PeerProcess: an engine behind its adapter (peer_adapters/), stopped while it is not its turn."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from others import Others
from workloads import Request

_SECONDS_TO_END = 10.0
_READ_BYTES = 1 << 16


class PeerError(RuntimeError):
    """A peer that failed, and the last thing it said."""


@dataclass(frozen=True)
class Measured:
    """One run. ttft_s: where there was one request. others_cores: mean CPUs that others used meanwhile."""

    wall_s: float
    ttft_s: float | None
    tokens: list[list[int]]
    others_cores: float


@dataclass(frozen=True)
class PeerSpec:
    """How to start a peer: name is what tables call it."""

    name: str
    command: Sequence[str]


class PeerProcess:
    """Started when it is first needed, again after a failure. While others run it is stopped (SIGSTOP): engines that
    poll for work, and some do, would take CPUs from the one that is measured.

    log: what it prints goes there. start_seconds, run_seconds: the most that starting, and one run, may take.
    """

    def __init__(self, spec: PeerSpec, log: Path, start_seconds: float, run_seconds: float) -> None:
        self.spec = spec
        self.description = spec.name
        self._log = log
        self._start_seconds = start_seconds
        self._run_seconds = run_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def prepare(self, requests: Sequence[Request]) -> None:
        """Ready for these requests afterwards, warm, and stopped. Raises PeerError."""
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.spec.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,
                )
        self.description = str(self._ask({"prepare": requests}, self._start_seconds)["engine"])

    def run(self, requests: Sequence[Request], *, warm: bool = False) -> Measured:
        """Replays the requests; warm: with prefix caches as the run before left them. Raises PeerError, also where an
        answer has another length than was asked for."""
        assert self._process is not None
        with Others(self._process.pid) as others:
            answer = self._ask({"run": requests, "warm": warm}, self._run_seconds)
        wrong = [
            index
            for index, (request, tokens) in enumerate(zip(requests, answer["tokens"], strict=True))
            if len(tokens) != request["out"]
        ]
        if wrong:
            got, wanted = len(answer["tokens"][wrong[0]]), requests[wrong[0]]["out"]
            raise PeerError(f"request {wrong[0]} has {got} tokens, not {wanted}; {len(wrong)} requests are like it")
        return Measured(answer["wall_s"], answer["ttft_s"], answer["tokens"], others.cores)

    def close(self, grace_seconds: float = _SECONDS_TO_END) -> None:
        """Ends the process and what it started, by force after that time. Idempotent."""
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        self._signal(process, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
        self._signal(process, signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def _ask(self, command: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Wakes the peer, sends the command, reads the answer, stops the peer."""
        process = self._process
        assert process is not None and process.stdin is not None
        self._signal(process, signal.SIGCONT)
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._line(process, seconds))
        except (OSError, PeerError, ValueError) as error:
            reason = f"{error}" if isinstance(error, PeerError) else self._last_words(process)
            self.close(grace_seconds=0.0)
            raise PeerError(reason) from None
        self._signal(process, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return answer

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise PeerError(f"not done in {seconds:.0f} s")
                read = os.read(process.stdout.fileno(), _READ_BYTES)
                if not read:
                    raise PeerError(self._last_words(process))
                self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"ended with status {process.returncode}: {said[-1] if said else 'without a word'}"

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
