"""Measuring what this machine can do: reading memory and caches, multiplying matrices.

The rates of caches and cores are what the machine sustains in the best of many short samples: whoever else runs can
only take from them, and a sample is shorter than the turn that a busy system gives a thread. Memory is shared with
whoever else is on the machine, and its rate goes up and down within milliseconds: what counts is what a reader of all
the weights gets, again and again, in the middle of many such readings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastpaged import _core
from fastpaged.weights.loader import weight_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.progress import ProgressBar

    Measure = Callable[[int], tuple[float, float]]  # a number of passes -> what was done, in how many seconds

NUM_SAMPLES = 15
PERCENTILE = 85  # of the samples of caches and cores: not the very best, which a clock may flatter
MEMORY_PERCENTILE = 50  # of those of memory, each as long as reading all weights takes
MOST_CHANGE = 0.10  # between two measurements of a quiet machine
_SAMPLE_SECONDS = 0.003
_MOST_BYTES = 512 << 20  # of a buffer that stands for the weights: beyond it nothing changes
_PIECE_BYTES = 1 << 20  # that a thread claims
_RATES = {
    "memory_rate": ("memory", "GB/s"),
    "cache_rate": ("threads' caches", "GB/s"),
    "shared_cache_rate": ("the shared cache", "GB/s"),
    "flop_rate": ("matrix work", "GFLOP/s"),
}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_CACHE_BYTES = 1 << 20
_DEFAULT_SHARED_CACHE_BYTES = 8 << 20


def measure_limits(
    device: _core.CpuDevice, num_weight_bytes: int, dtype: str, progress: Callable[[], None] | None = None
) -> _core.MachineLimits:
    """For ops on the threads of `device` in this dtype, with about so many bytes of weights. Takes about a second.

    flop_rate is that of weights which stream from the threads' own caches. progress: called before each of 4 parts.
    """
    step = progress if progress is not None else _nothing
    step()
    memory = memory_rate(device, weight_buffer(num_weight_bytes))
    step()
    own = cache_rate(device, own_cache_bytes() // 2)
    step()
    shared = cache_rate(device, shared_piece_bytes(device.num_threads))
    step()
    return _core.MachineLimits(
        memory_rate=memory,
        cache_rate=own,
        shared_cache_rate=min(shared, own),
        cache_bytes=own_cache_bytes() * device.num_threads,
        flop_rate=matrix_rate(device, dtype, own_cache_bytes() // 2),
    )


def limits_of_engine(engine: LLMEngine, bar: ProgressBar | None) -> _core.MachineLimits:
    """On the threads of this engine, for its model and dtype; the bar shows how far that is, and is gone after it."""
    worker = engine.worker
    num_done = 0

    def show() -> None:
        nonlocal num_done
        if bar is not None:
            bar("measuring this machine", num_done, 4)
        num_done += 1

    try:
        num_bytes = weight_bytes(worker.model_config, worker.dtype)
        return measure_limits(worker.device, num_bytes, worker.dtype, show)
    finally:
        if bar is not None:
            bar.clear()


def better_limits(first: _core.MachineLimits, second: _core.MachineLimits) -> _core.MachineLimits:
    """Of one device, measured twice: the larger of each rate, for whoever disturbs can only lower it."""
    rates = {name: max(getattr(first, name), getattr(second, name)) for name in _RATES}
    return _core.MachineLimits(cache_bytes=first.cache_bytes, **rates)


def changes(first: _core.MachineLimits, second: _core.MachineLimits) -> list[str]:
    """A warning for each rate that a quiet machine would not have changed so much between the two."""
    found = []
    for name, (title, unit) in _RATES.items():
        before, after = getattr(first, name), getattr(second, name)
        if abs(after - before) > MOST_CHANGE * max(before, after):
            rates = f"{before / 1e9:.1f} {unit} before, {after / 1e9:.1f} after"
            found.append(f"this machine was not quiet: {title} {rates}")
    return found


def limits_as_dict(limits: _core.MachineLimits) -> dict[str, Any]:
    """For JSON: bytes and flops per second."""
    return {name: getattr(limits, name) for name in (*_RATES, "cache_bytes")}


def weight_buffer(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Committed memory to read in place of weights; no more than is needed to be no cache's."""
    return np.ones(min(max(num_bytes, 1 << 16), _MOST_BYTES), np.uint8)


def memory_rate(device: _core.CpuDevice, buffer: npt.NDArray[np.uint8]) -> float:
    """Bytes per second, of reading the whole buffer."""

    def read(num_passes: int) -> tuple[float, float]:
        parts = [_core.measure_read(device, buffer, piece_bytes=_PIECE_BYTES) for _ in range(num_passes)]
        return sum(amount for amount, _ in parts), sum(seconds for _, seconds in parts)

    return sustained_rate(read, MEMORY_PERCENTILE)


def cache_rate(device: _core.CpuDevice, piece_bytes: int) -> float:
    """Bytes per second, each thread reading a piece of its own again and again."""
    buffer = np.ones(piece_bytes * device.num_threads, np.uint8)
    return sustained_rate(lambda n: _core.measure_read(device, buffer, piece_bytes=piece_bytes, num_passes=n))


def matrix_rate(device: _core.CpuDevice, dtype: str, weight_bytes: int) -> float:
    """Flops per second; weight_bytes: that each thread streams from its cache, or 0 for operands in registers."""
    return sustained_rate(_core.MatrixProbe(device, dtype, weight_bytes=weight_bytes).measure)


def sustained_rate(measure: Measure, percentile: int = PERCENTILE, num_samples: int = NUM_SAMPLES) -> float:
    """The percentile-th of samples with as many passes as take a few milliseconds."""
    num_passes = 1
    while measure(num_passes)[1] < _SAMPLE_SECONDS and num_passes < 1 << 40:
        num_passes *= 2
    samples = [measure(num_passes) for _ in range(num_samples)]
    rates = sorted(amount / max(seconds, 1e-9) for amount, seconds in samples)
    return rates[round(percentile / 100 * (num_samples - 1))]


def own_cache_bytes() -> int:
    """Of the largest cache that a thread has to itself, or its share of one that a few threads have."""
    size, num_cpus = _cache(2)
    return size // num_cpus if size else _DEFAULT_CACHE_BYTES


def shared_piece_bytes(num_threads: int) -> int:
    """What each thread reads to measure the cache behind its own: too much for that, but not for all of them."""
    return max(shared_cache_bytes() // 2 // num_threads, 2 * own_cache_bytes())


def shared_cache_bytes() -> int:
    """Of the cache behind those of the threads."""
    return _cache(3)[0] or _DEFAULT_SHARED_CACHE_BYTES


def _cache(level: int) -> tuple[int, int]:
    """(bytes, CPUs that share them) of the first CPU's cache; 0 bytes where the system does not say."""
    try:
        folder = next(f for f in _CACHES.glob("index*") if (f / "level").read_text().strip() == str(level))
        size = (folder / "size").read_text().strip()
        cpus = int((folder / "shared_cpu_map").read_text().strip().replace(",", ""), 16).bit_count()
        return int(size.removesuffix("K")) * 1024, max(cpus, 1)
    except (OSError, StopIteration, ValueError):
        return 0, 1


def _nothing() -> None:
    pass
