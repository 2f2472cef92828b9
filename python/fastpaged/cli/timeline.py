"""Timeline: when a command's phases ended, counted from the start of the process."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Timeline:
    """Seconds since the process began, at named moments. Where the system does not tell when the process began, since
    this object did."""

    def __init__(self) -> None:
        self._zero = time.monotonic() - _process_age()
        self.moments: dict[str, float] = {}

    def mark(self, moment: str) -> float:
        """Notes that `moment` is now; the first time counts."""
        return self.moments.setdefault(moment, time.monotonic() - self._zero)


def _process_age() -> float:
    """Seconds since this process was started, to the kernel's clock tick (usually 10 ms); 0 where unknown."""
    try:
        # The command's name, in parentheses, may hold spaces: count fields from behind it.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
