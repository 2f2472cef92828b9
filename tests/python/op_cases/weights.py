"""CaseWeights: the weights of a case, the same numbers for every op set, each in the form that one takes them in."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from op_arrays import Dtype, to_bfloat16

from fastpaged import _core
from op_cases.numpy_ops import rounded

if TYPE_CHECKING:
    from fastpaged.ops.op_set import OpSet

Floats = npt.NDArray[np.float32]

VOCAB_SIZE = 60
NAN_TOKEN = VOCAB_SIZE  # the row behind the others in the table of inputs
MAX_POSITIONS = 600


class CaseWeights:
    """As NumpyOps takes them, in float64. Each is drawn anew from its name, so that order does not matter."""

    def __init__(self, case: str, dtype: Dtype) -> None:
        self._case = case
        self.dtype: Dtype = dtype

    def vector(self, name: str, size: int, *, scale: float = 0.3, offset: float = 1.0) -> Any:
        return self._as_floats(self._draw(name, size) * np.float32(scale) + np.float32(offset))

    def table(self, name: str, cols: int) -> Any:
        return self._as_table(self._draw(name, VOCAB_SIZE + 1, cols))

    def float_table(self, name: str, cols: int) -> Any:
        return self._as_floats(self._draw(name, MAX_POSITIONS, cols))

    def rope(self, rotary: int) -> Any:
        angles = np.outer(np.arange(MAX_POSITIONS), 100.0 ** -np.linspace(0.0, 1.0, rotary // 2))
        return self._as_floats(np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))

    def linear(self, name: str, out_features: int, in_features: int) -> Any:
        return self._as_linear(self._draw(name, out_features, in_features) / np.float32(np.sqrt(in_features)))

    def gated_linear(self, name: str, features: int, in_features: int) -> Any:
        return self._as_gated(self._draw(name, 2 * features, in_features) / np.float32(np.sqrt(in_features)))

    def activations(self, op: OpSet, cols: int) -> Any:
        """[tokens, cols] in the activation dtype, of deviation 1; NaN for NAN_TOKEN."""
        return op.rms_norm(self.x(op, cols), self._as_floats(np.ones(cols, np.float32)), 1e-5)

    def x(self, op: OpSet, cols: int, name: str = "x", *, scale: float = 1.0, offset: float = 0.0) -> Any:
        """float32 [tokens, cols], a function of the token id; NaN for NAN_TOKEN."""
        table = self._draw(name, VOCAB_SIZE + 1, cols) * np.float32(scale) + np.float32(offset)
        table[NAN_TOKEN] = np.nan
        return op.embedding("token_ids", self._as_table(table))

    def read(self, op: OpSet, x: Any, cols: int) -> Any:
        """x [rows, cols], in the activation dtype, as float32: exact for finite numbers."""
        return op.linear(x, self._as_linear(np.eye(cols, dtype=np.float32)))

    def _draw(self, name: str, *shape: int) -> Floats:
        seed = zlib.crc32(f"{self._case}/{name}".encode())
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def _as_floats(self, values: Floats) -> Any:
        return values.astype(np.float64)

    def _as_table(self, values: Floats) -> Any:
        return rounded(values, self.dtype)

    def _as_linear(self, values: Floats) -> Any:
        return rounded(values, self.dtype)

    def _as_gated(self, values: Floats) -> Any:
        return self._as_linear(values)


class KernelWeights(CaseWeights):
    """As KernelOps takes them."""

    def __init__(self, case: str, dtype: Dtype, device: _core.CpuDevice) -> None:
        super().__init__(case, dtype)
        self._device = device

    def _as_floats(self, values: Floats) -> Any:
        return values

    def _as_table(self, values: Floats) -> Any:
        return values if self.dtype == "float32" else bfloat16_bits(values)

    def _as_linear(self, values: Floats) -> Any:
        return _core.PackedLinear(self._device, [values], self.dtype)

    def _as_gated(self, values: Floats) -> Any:
        return _core.PackedLinear(self._device, [values], self.dtype, gated=True)


def bfloat16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """With NaN."""
    return np.where(np.isnan(values), np.uint16(0x7FC0), to_bfloat16(np.nan_to_num(values)))
