"""What a forked child may do with a device it inherits: drop it, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# Forks, runs `child` in the child, and prints how it ended: with status -14 if it hung until its alarm. In a fresh
# interpreter, so that no thread of the test run is forked too.
_SCRIPT = """
import os, signal, sys
import numpy as np
from fastpaged import _core

def compute(device):
    out = np.zeros((64, 512), np.float32)
    weight = _core.PackedLinear(device, [np.full((512, 64), 0x3F80, np.uint16)])
    _core.linear(device, np.full((64, 64), 0x3F80, np.uint16), weight, out)
    return out

device = _core.CpuDevice({isa!r}, {num_threads})
sampler = _core.Sampler(device)
graph = _core.ModelGraph(device)
assert (compute(device) == 64).all()
parent = os.getpid()
process = os.fork()
if process == 0:
    signal.alarm(60)
{child}
    sys.stdout.flush()
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
assert (compute(device) == 64).all()
print("status", status)
"""


def output_of_child(child: str, isa: str, num_threads: int) -> str:
    script = _SCRIPT.format(isa=isa, num_threads=num_threads, child=textwrap.indent(textwrap.dedent(child), " " * 4))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_forked_child_drops_its_device_and_ends(isa: str, num_threads: int) -> None:
    assert output_of_child("del sampler, graph, device", isa, num_threads) == "status 0\n"


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_forked_child_that_computes_is_told_to_make_its_own_engine(isa: str, num_threads: int) -> None:
    child = """
    for use in (compute, lambda device: sampler.sample_rows(np.zeros((0, 4), np.float32), [], [])):
        try:
            use(device)
        except RuntimeError as error:
            print(str(error).replace(str(parent), "PARENT"))
    """
    expected = "this thread pool was made in process PARENT; a forked child must make its own engine\n"
    assert output_of_child(child, isa, num_threads) == 2 * expected + "status 0\n"


def test_a_forked_child_makes_a_device_of_its_own(isa: str) -> None:
    child = "print((compute(_core.CpuDevice(device.isa, device.num_threads)) == 64).all())"
    assert output_of_child(child, isa, 3) == "True\nstatus 0\n"


def test_a_forked_child_with_a_device_leaves_its_interpreter(isa: str) -> None:
    assert output_of_child("sys.exit(7)", isa, 3) == "status 7\n"
