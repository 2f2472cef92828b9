"""What a model asks for when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fastpaged import _core


class WeightSource(Protocol):
    """Weights by their Hugging Face names, their shapes checked, in the form the ops take them."""

    def table(self, name: str) -> npt.NDArray[np.uint16]:
        """A matrix as bfloat16 bits, row by row."""

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """A vector in float32."""

    def linear(self, *names: str) -> _core.PackedLinear:
        """One packed weight of one or more matrices [N_i, K], stacked along N."""
