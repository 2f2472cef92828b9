"""How much of the machine others use while something of ours runs: Linux's own accounts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Others:
    """`with Others(session) as others: ...`; then others.cores: mean CPUs busy with anything but that session."""

    def __init__(self, session: int) -> None:
        self._session = session
        self.cores = 0.0

    def __enter__(self) -> Others:
        self._begin = time.perf_counter()
        self._busy = _busy_seconds() - _session_seconds(self._session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        elapsed = max(time.perf_counter() - self._begin, 1e-3)
        busy = _busy_seconds() - _session_seconds(self._session) - self._busy
        self.cores = max(0.0, busy / elapsed)


def _busy_seconds() -> float:
    """Of all CPUs since boot, without idle and waiting for disks."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _session_seconds(session: int) -> float:
    """CPU time of a session's processes, and of those they waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S
