"""The memory of a process, watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pss import PeakPss, pss_bytes

MIB = 1 << 20


def test_the_peak_of_a_process_is_seen_after_it_let_go_of_it() -> None:
    script = "import sys; b = bytearray(64 << 20); print(flush=True); sys.stdin.readline(); del b; print(flush=True); "
    script += "sys.stdin.readline()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        with PeakPss(process.pid) as peak:
            while not peak.num_bytes:
                pass
            process.stdin.write(b"\n")
            process.stdout.readline()
            left = pss_bytes(Path(f"/proc/{process.pid}/smaps_rollup"))
            process.stdin.write(b"\n")
    assert left < 64 * MIB < peak.num_bytes < 128 * MIB


def test_a_process_that_has_ended_has_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert pss_bytes(Path(f"/proc/{process.pid}/smaps_rollup")) == 0
    assert pss_bytes(Path(f"/proc/{os.getpid()}/smaps_rollup")) > MIB
