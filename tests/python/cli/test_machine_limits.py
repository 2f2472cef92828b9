"""Measuring a machine: what is asked for is measured, and nothing of it depends on how fast the machine is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from fastpaged import _core
from fastpaged.cli import machine_limits
from fastpaged.cli.limits_line import limits_line
from fastpaged.cli.machine_file import limits_of_file
from fastpaged.errors import InvalidRequestError


@pytest.mark.parametrize(("num_disturbed", "rate"), [(0, 10_000.0), (12, 10_000.0), (13, 100.0)])
def test_a_rate_is_what_a_few_samples_that_nobody_disturbs_sustain(num_disturbed: int, rate: float) -> None:
    asked: list[int] = []
    slow = iter([100.0] * num_disturbed + [1.0] * (machine_limits.NUM_SAMPLES - num_disturbed))

    def measure(num_passes: int) -> tuple[float, float]:
        asked.append(num_passes)
        seconds = 0.001 * num_passes
        return 10.0 * num_passes, seconds * (next(slow) if num_passes == 4 and asked.count(4) > 1 else 1.0)

    assert machine_limits.sustained_rate(measure) == pytest.approx(rate)
    assert asked == [1, 2, 4] + [4] * machine_limits.NUM_SAMPLES


def test_limits_are_rates_of_the_device_that_was_measured() -> None:
    parts: list[int] = []
    device = _core.CpuDevice("scalar", 2)
    limits = machine_limits.measure_limits(device, 1 << 20, "bfloat16", lambda: parts.append(1))
    assert len(parts) == 4
    measured = machine_limits.limits_as_dict(limits)
    assert min(measured.values()) > 0
    assert limits.cache_bytes == 2 * machine_limits.own_cache_bytes()
    assert limits.shared_cache_rate <= limits.cache_rate
    assert "GB/s from memory" in limits_line(measured)


def machine(memory: float, flops: float) -> _core.MachineLimits:
    return _core.MachineLimits(
        memory_rate=memory, cache_rate=4e9, shared_cache_rate=3e9, cache_bytes=8, flop_rate=flops
    )


def test_of_two_measurements_the_larger_of_each_rate_counts() -> None:
    better = machine_limits.limits_as_dict(machine_limits.better_limits(machine(1e9, 7e9), machine(2e9, 6e9)))
    assert better == machine_limits.limits_as_dict(machine(2e9, 7e9))


def test_a_rate_that_changed_by_more_than_a_tenth_is_a_warning() -> None:
    assert machine_limits.changes(machine(20e9, 7e9), machine(18.1e9, 7.5e9)) == []
    assert machine_limits.changes(machine(20e9, 7e9), machine(17.9e9, 7e9)) == [
        "this machine was not quiet: memory 20.0 GB/s before, 17.9 after"
    ]
    assert len(machine_limits.changes(machine(17e9, 5e9), machine(20e9, 7e9))) == 2


def test_limits_come_out_of_a_file_by_threads_and_dtype_and_instruction_set(tmp_path: Path) -> None:
    device = _core.CpuDevice("scalar", 2)
    rows: list[dict[str, object]] = [
        {"what": "read", "from": place, "threads": threads, "rate": rate * threads}
        for place, rate in (("memory", 1.0), ("shared cache", 2.0), ("own cache", 3.0))
        for threads in (1, 2)
    ]
    rows += [
        {"what": "multiply", "from": place, "isa": isa, "dtype": dtype, "threads": 2, "rate": rate}
        for place, isa, dtype, rate in (
            ("own cache", "scalar", "float32", 5.0),
            ("registers", "scalar", "float32", 9.0),
            ("own cache", "other", "float32", 7.0),
            ("own cache", "other", "bfloat16", 8.0),
        )
    ]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"rates": rows}), encoding="utf-8")
    limits = limits_of_file(path, device, "float32")
    assert (limits.memory_rate, limits.shared_cache_rate, limits.cache_rate, limits.flop_rate) == (2.0, 4.0, 6.0, 5.0)
    assert limits_of_file(path, device, "bfloat16").flop_rate == 8.0  # where the device has none of its own
    for other in (_core.CpuDevice("scalar", 3), device):
        if other is device:
            path.write_text("{}", encoding="utf-8")
        with pytest.raises(InvalidRequestError, match=r"--machine must be a file of `fastpaged bench machine --json`"):
            limits_of_file(path, other, "float32")


def test_memory_is_read_whole_and_its_rate_is_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = np.ones(4096, np.uint8)
    seconds = itertools.cycle([1.0, 2.0, 4.0])

    def read(device: object, part: np.ndarray, *, piece_bytes: int) -> tuple[float, float]:
        assert part.size == buffer.size
        return float(part.size), next(seconds)

    monkeypatch.setattr(_core, "measure_read", read)
    assert machine_limits.memory_rate(_core.CpuDevice("scalar", 1), buffer) == pytest.approx(2048.0)


def test_a_call_takes_as_long_as_its_slowest_kind_of_work() -> None:
    limits = _core.MachineLimits(
        memory_rate=100.0, cache_rate=1000.0, shared_cache_rate=10.0, cache_bytes=50, flop_rate=200.0
    )
    assert limits.seconds(memory_bytes=400, flops=100) == pytest.approx(4.0)
    assert limits.seconds(memory_bytes=400, flops=1000) == pytest.approx(5.0)
    assert limits.seconds(activation_bytes=50) == pytest.approx(0.05)
    assert limits.seconds(activation_bytes=51) == pytest.approx(5.1)
    assert limits.seconds() == 0.0


@pytest.mark.parametrize("isa", _core.supported_isas())
def test_every_table_has_kernels_to_measure_with(isa: str) -> None:
    device = _core.CpuDevice(isa, 2)
    dtypes = _core.matrix_dtypes(isa)
    assert dtypes[-1] == "float32"
    assert ("bfloat16" in dtypes) == isa.startswith(("avx512", "amx"))
    for dtype in ("bfloat16", "float32"):
        for weight_bytes in (0, 1 << 12):
            flops, seconds = _core.MatrixProbe(device, dtype, weight_bytes=weight_bytes).measure(2)
            assert flops > 0
            assert seconds > 0
    buffer = np.ones(10_000, np.uint8)
    num_bytes, seconds = _core.measure_read(device, buffer, piece_bytes=1000, num_passes=3)
    assert num_bytes == 3 * (10_000 // 256 * 256)
    assert seconds > 0


def test_what_cannot_be_measured_is_refused_by_name() -> None:
    device = _core.CpuDevice("scalar", 1)
    buffer = np.ones(1024, np.uint8)
    with pytest.raises(ValueError, match="piece_bytes must be at least 1, got 0"):
        _core.measure_read(device, buffer, piece_bytes=0)
    with pytest.raises(ValueError, match="num_passes must be at least 1, got 0"):
        _core.measure_read(device, buffer, piece_bytes=1, num_passes=0)
    with pytest.raises(ValueError, match="buffer must be a contiguous array of uint8"):
        _core.measure_read(device, buffer[::2], piece_bytes=1)
    with pytest.raises(ValueError, match=r"weight_bytes must lie in \[0, .*\], got -1"):
        _core.MatrixProbe(device, "float32", weight_bytes=-1)
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'bfloat16'"):
        _core.MatrixProbe(device, "int8", weight_bytes=0)
    with pytest.raises(ValueError, match="num_passes must be at least 1"):
        _core.MatrixProbe(device, "float32", weight_bytes=0).measure(0)
    with pytest.raises(ValueError, match="isa must be one"):
        _core.matrix_dtypes("avx9000")
