"""Behaviour 19: an engine that has served many requests holds no more than one that has served few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "soak" / "run_soak.py"


def soak(num_requests: int, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what other tests keep, or their threads take meanwhile, is not counted."""
    command = [sys.executable, str(SCRIPT), "--requests", str(num_requests), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_eight_thousand_requests_of_every_kind_leave_nothing_behind() -> None:
    done = soak(8000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat" in done.stdout.splitlines()[-1]


def test_nor_do_they_in_a_recorder_and_their_recording_replays() -> None:
    done = soak(3000, "--record")
    assert done.returncode == 0, done.stdout + done.stderr
    flat, replayed = done.stdout.splitlines()[-2:]
    assert "flat" in flat
    assert replayed.endswith(" decisions, 0 of them different")


@pytest.mark.parametrize("what", ["outputs", "bytes"])
def test_what_is_kept_of_each_request_is_noticed(what: str) -> None:
    done = soak(2000, "--keep", what)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT FLAT" in done.stdout.splitlines()[-1]
