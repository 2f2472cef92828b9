"""The memory of a process while it runs: proportional set size, in which pages that processes share count in shares."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

_SECONDS_BETWEEN = 0.02


class PeakPss:
    """`with PeakPss(pid) as peak: ...`; then peak.num_bytes: the most that a look every few milliseconds has seen."""

    def __init__(self, pid: int) -> None:
        self.num_bytes = 0
        self._path = Path(f"/proc/{pid}/smaps_rollup")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.num_bytes = max(self.num_bytes, pss_bytes(self._path))
            if self._is_over.wait(_SECONDS_BETWEEN):
                return


def pss_bytes(smaps_rollup: Path) -> int:
    """Now; 0 where the process has ended, or has no memory any more."""
    try:
        text = smaps_rollup.read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
