"""Numbers for a KV pool that no model has written: memory that nobody wrote is read out of one page of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def fill_with_noise(pool: npt.NDArray[Any]) -> None:
    """pool: [num_blocks, ...], float32, or bfloat16 as uint16. Standard normal numbers, the same in every block."""
    numbers = np.random.default_rng(0).standard_normal(pool.shape[1:], np.float32)
    pool[:] = numbers if pool.dtype == np.float32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)
