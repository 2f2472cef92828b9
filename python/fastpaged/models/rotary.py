"""The table of rotary position embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastpaged.models.rope_scaling import FactorScaling, YarnScaling

if TYPE_CHECKING:
    from fastpaged.models.rope import Rope
    from fastpaged.models.rope_scaling import Frequencies
    from fastpaged.models.weight_source import WeightSource


def rotary_table(num_positions: int, rope: Rope, source: WeightSource | None = None) -> npt.NDArray[np.float32]:
    """[num_positions, rotary_dim] float32: rotary_dim / 2 cosines of the position's angles, then as many sines.

    source: where the tensors of factors are, for a rope that has some. Frequencies and angles are rounded to float32,
    as `transformers` rounds them: weights were trained with those angles (5e-4 away from the exact ones at position
    8000), and comparisons with it see the model alone. Cosine and sine are taken in float64 and rounded once, so that
    the table does not depend on the vector code NumPy picks.
    """
    half = rope.rotary_dim // 2
    frequencies = rotary_frequencies(num_positions, rope, source)
    scaling = rope.scaling
    if isinstance(scaling, FactorScaling):
        scaling.tell_of_choice(num_positions)
    length = scaling.attention_factor if isinstance(scaling, (YarnScaling, FactorScaling)) else 1.0
    table = np.empty((num_positions, rope.rotary_dim), np.float32)
    rows = max(1, (1 << 18) // half)  # a bounded piece at a time: the float64 angles of a long context are large
    for begin in range(0, num_positions, rows):
        positions = np.arange(begin, min(begin + rows, num_positions), dtype=np.float32)
        angles = (positions[:, None] * frequencies).astype(np.float64)
        table[begin : begin + rows, :half] = length * np.cos(angles)
        table[begin : begin + rows, half:] = length * np.sin(angles)
    return table


def rotary_frequencies(num_positions: int, rope: Rope, source: WeightSource | None = None) -> Frequencies:
    """[rotary_dim / 2] float32, in radians per position."""
    exponents = (np.arange(rope.rotary_dim // 2, dtype=np.float64) * 2 / rope.rotary_dim).astype(np.float32)
    powers = np.power(np.float64(rope.theta), exponents.astype(np.float64)).astype(np.float32)
    frequencies: Frequencies = np.float32(1.0) / powers
    if rope.scaling is None:
        return frequencies
    if isinstance(rope.scaling, FactorScaling):
        return rope.scaling.scaled(frequencies, num_positions, source)
    if isinstance(rope.scaling, YarnScaling):
        return rope.scaling.scaled(frequencies, rope)
    return rope.scaling.scaled(frequencies)
