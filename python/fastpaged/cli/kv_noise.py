"""Numbers for a KV pool that no model has written: memory that nobody wrote is read out of one page of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastpaged.config import KVDType
    from fastpaged.worker.kv_memory import KVMemory

# The largest code that is written, its sign aside, and what it is worth.
_LARGEST: Mapping[KVDType, tuple[int, float]] = {
    "fp8_e4m3": (0x7E, 448.0),
    "fp8_e5m2": (0x7B, 57344.0),
    "int8": (0x7F, 127.0),
}


def fill_with_noise(memory: KVMemory) -> None:
    """Standard normal numbers, the same in every block of the pool; of 8 bits any codes that a model could have
    written, with a scale by which none is worth more than 4."""
    pool, rng = memory.array, np.random.default_rng(0)
    if memory.dtype in ("bfloat16", "float32"):
        numbers = rng.standard_normal(pool.shape[1:], np.float32)
        pool[:] = numbers if pool.dtype == np.float32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return
    block = np.empty(pool.shape[1:], np.uint8)
    codes, scales = memory.codes_and_scales(block)
    largest, worth = _LARGEST[memory.dtype]
    magnitudes = rng.integers(1, largest, codes.shape, np.uint8, endpoint=True)
    negated = 256 - magnitudes.astype(np.int16) if memory.dtype == "int8" else magnitudes | 0x80
    codes[:] = np.where(rng.random(codes.shape) < 0.5, magnitudes, negated)
    scales[:] = 4.0 / worth
    pool[:] = block
