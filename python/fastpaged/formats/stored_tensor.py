"""A tensor as a file stores it, and the sizes of the kinds of storage that fastpaged reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# kind -> (values per block, bytes per block). Blocks run along the innermost dimension.
STORED_KINDS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor of a model file, not yet decoded.

    `shape` has the outermost dimension first; `data` is a read-only view of the mapped file, uint8, contiguous, as
    long as `kind` and `shape` say. The view keeps the mapping alive, also after the file was closed.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def num_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a known `kind`. Raises ValueError where the innermost dimension holds part of a block."""
    block_values, block_bytes = STORED_KINDS[kind]
    if not shape:
        return block_bytes
    if shape[-1] % block_values:
        raise ValueError(f"innermost dimension: expected a multiple of {block_values} for {kind}, found {shape[-1]}")
    return math.prod(shape) // block_values * block_bytes
