"""Attention with linear biases: how much each head minds distance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def alibi_slopes(num_heads: int, scale: float) -> npt.NDArray[np.float32]:
    """[num_heads]: a geometric sequence from its own ratio to 2^-8; where num_heads is no power of two, that of the
    next smaller one, followed by every other slope of the next larger one. Times scale.

    Slopes pass through bfloat16, as they do in `transformers` (and did in training). It rounds their products with
    positions to bfloat16 too, which for slopes that are no powers of two, or beyond position 256, is an error that
    grows with the position rather than the distance; ours are exact.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 / power * (i + 1)) for i in range(power)]
    slopes += [2.0 ** (-4.0 / power * (2 * i + 1)) for i in range(num_heads - power)]
    scaled: npt.NDArray[np.float32] = _through_bfloat16(np.array(slopes, np.float32)) * np.float32(scale)
    return scaled


def _through_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """To the nearest, ties to even."""
    bits = values.view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    rounded: npt.NDArray[np.float32] = upper.view(np.float32)
    return rounded
