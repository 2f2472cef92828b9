"""What a model asks for when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fastpaged.ops.op_set import FloatTable, GatedWeight, LinearWeight, Table, Vector


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of a stored tensor, in the order wanted: how fused and interleaved matrices are taken apart.

    rows: indices of stored rows (of elements, for a vector); None: all, as they are.
    transposed: the tensor is stored as [in, out], and turned before rows are counted.
    """

    name: str
    rows: npt.NDArray[np.int64] | None = None
    transposed: bool = False


class WeightSource(Protocol):
    """Weights by their Hugging Face names, their shapes checked, in the form the ops take them."""

    def table(self, name: str) -> Table:
        """A matrix in the activation dtype, row by row."""

    def float_table(self, name: str) -> FloatTable:
        """A matrix in float32, row by row."""

    def vector(self, *parts: str | Part) -> Vector:
        """One or more vectors in float32, one behind the other."""

    def linear(self, *parts: str | Part) -> LinearWeight:
        """One packed weight of one or more matrices [N_i, K], stacked along N, in the activation dtype."""

    def gated_linear(self, *parts: str | Part) -> GatedWeight:
        """The same for gated_linear(): all gates, then as many ups."""
