"""The table of rotary position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fastpaged.models.rope import Rope


def rotary_table(num_positions: int, rope: Rope) -> npt.NDArray[np.float32]:
    """[num_positions, rotary_dim] float32: rotary_dim / 2 cosines of the position's angles, then as many sines.

    Frequencies and angles are rounded to float32, as `transformers` rounds them: weights were trained with those
    angles (5e-4 away from the exact ones at position 8000), and comparisons with it see the model alone. Cosine and
    sine are taken in float64 and rounded once, so that the table does not depend on the vector code NumPy picks.
    """
    half = rope.rotary_dim // 2
    exponents = (np.arange(half, dtype=np.float64) * 2 / rope.rotary_dim).astype(np.float32)
    powers = np.power(np.float64(rope.theta), exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1.0) / powers
    table = np.empty((num_positions, 2 * half), np.float32)
    rows = max(1, (1 << 18) // half)  # a bounded piece at a time: the float64 angles of a long context are large
    for begin in range(0, num_positions, rows):
        positions = np.arange(begin, min(begin + rows, num_positions), dtype=np.float32)
        angles = (positions[:, None] * frequencies).astype(np.float64)
        table[begin : begin + rows, :half] = np.cos(angles)
        table[begin : begin + rows, half:] = np.sin(angles)
    return table
