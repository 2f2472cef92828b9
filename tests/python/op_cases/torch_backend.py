"""TorchOps as a backend of the cases."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from kv_codes import CodeDtype
from models.step_arrays import StepArrays
from op_arrays import Dtype

from fastpaged.ops.op_set import OpSet
from fastpaged.ops.torch_batch import TorchBatch
from fastpaged.ops.torch_ops import TorchOps
from op_cases.weights import CaseWeights


class TorchWeights(CaseWeights):
    """As TorchOps takes them."""

    def _as_floats(self, values: npt.NDArray[np.float32]) -> Any:
        return torch.from_numpy(values)

    def _as_table(self, values: npt.NDArray[np.float32]) -> Any:
        return torch.from_numpy(values).to(getattr(torch, self.dtype))

    def _as_linear(self, values: npt.NDArray[np.float32]) -> Any:
        return self._as_table(values)


class TorchBackend:
    def __init__(self, dtype: Dtype, kv_cache_dtype: CodeDtype | Literal["auto"] = "auto") -> None:
        self.dtype: Dtype = dtype
        self._kv_cache_dtype: CodeDtype | Literal["auto"] = kv_cache_dtype

    def weights(self, case: str) -> CaseWeights:
        return TorchWeights(case, self.dtype)

    def cache(self, shape: tuple[int, ...]) -> Any:
        return torch.full(shape, torch.nan, dtype=getattr(torch, self.dtype))

    def ops(self, step: StepArrays, cache: Any) -> OpSet:
        return TorchOps(TorchBatch.of(step), cache, self._kv_cache_dtype)
