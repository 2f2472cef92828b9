"""How a weight is called and laid out in a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class GgufName:
    """A tensor of the file, and what llama.cpp's converter has done to the one it was made from. Loading undoes it.

    permuted_heads: the rows of a rotated projection are reordered within each of these heads, from halves (i beside
    i + head_dim / 2) to neighbours (2 i beside 2 i + 1). None: they are not.
    rows: row i of the file is row rows[i] of the original. None: rows are as in the original.
    transposed: the file holds the transpose of the original.
    minus_one: the file holds the original plus one (a vector).
    """

    name: str
    permuted_heads: int | None = None
    rows: npt.NDArray[np.int64] | None = None
    transposed: bool = False
    minus_one: bool = False
