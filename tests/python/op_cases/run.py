"""Running a case: all its tokens through an op set, in steps of any cut, from a cache full of NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from kv_codes import CodeDtype, no_codes
from models.step_arrays import Chunk, StepArrays, block_tables, step_arrays
from op_arrays import Dtype

from fastpaged import _core
from fastpaged.ops.op_set import OpSet
from op_cases.cases import Case
from op_cases.kernel_ops import KernelOps
from op_cases.numpy_ops import NumpyOps
from op_cases.weights import CaseWeights, KernelWeights

Rows = npt.NDArray[Any]  # [positions, columns] of one sequence
NUM_LAYERS = 2


class Backend(Protocol):
    """An op set as a case needs it: its weights, a cache full of NaN, and one instance for each step."""

    dtype: Dtype

    def weights(self, case: str) -> CaseWeights: ...
    def cache(self, shape: tuple[int, ...]) -> Any: ...
    def ops(self, step: StepArrays, cache: Any) -> OpSet: ...


class NumpyBackend:
    """kv_cache_dtype: of K and V, if they go through 8 bits."""

    def __init__(self, dtype: Dtype, kv_cache_dtype: CodeDtype | None = None) -> None:
        self.dtype: Dtype = dtype
        self._kv_cache_dtype = kv_cache_dtype

    def weights(self, case: str) -> CaseWeights:
        return CaseWeights(case, self.dtype)

    def cache(self, shape: tuple[int, ...]) -> Any:
        return np.full(shape, np.nan)

    def ops(self, step: StepArrays, cache: Any) -> OpSet:
        return NumpyOps(step, cache, self.dtype, self._kv_cache_dtype)


class KernelBackend:
    def __init__(
        self, device: _core.CpuDevice, dtype: Dtype, kv_cache_dtype: CodeDtype | Literal["auto"] = "auto"
    ) -> None:
        self.dtype: Dtype = dtype
        self._device = device
        self._kv_cache_dtype: CodeDtype | Literal["auto"] = kv_cache_dtype

    def weights(self, case: str) -> CaseWeights:
        return KernelWeights(case, self.dtype, self._device)

    def cache(self, shape: tuple[int, ...]) -> Any:
        if self._kv_cache_dtype != "auto":
            return no_codes(*shape)
        return np.full(shape, 0x7FC0, np.uint16) if self.dtype == "bfloat16" else np.full(shape, np.nan, np.float32)

    def ops(self, step: StepArrays, cache: Any) -> OpSet:
        return KernelOps(self._device, step, cache, self.dtype, self._kv_cache_dtype)


def run(
    case: Case, backend: Backend, sequences: list[list[int]], steps: list[list[Chunk]], *, block_size: int = 16
) -> list[Rows]:
    """What the case makes of every position; those that no step has computed are left out."""
    tables, num_blocks = block_tables([len(sequence) for sequence in sequences], block_size, seed=block_size)
    num_kv_heads, head_dim = case.kv or (1, 16)
    cache = backend.cache((num_blocks, NUM_LAYERS, 2, num_kv_heads, block_size, head_dim))
    weights = backend.weights(case.name)
    rows: list[list[Rows]] = [[] for _ in sequences]
    for chunks in steps:
        step = step_arrays(chunks, sequences, tables, block_size)
        op = backend.ops(step, cache)
        out = np.asarray(op.rows(case.forward(op, weights), "sample_rows"))
        for i, chunk in enumerate(chunks):
            rows[chunk.sequence].append(out[step.query_start[i] : step.query_start[i + 1]])
    return [np.concatenate(pieces) if pieces else np.empty((0, 0)) for pieces in rows]


def in_one_step(sequences: list[list[int]]) -> list[list[Chunk]]:
    return [[Chunk(i, 0, len(sequence)) for i, sequence in enumerate(sequences)]]


def chunked(sequences: list[list[int]], sizes: Callable[[int], int]) -> list[list[Chunk]]:
    """Sequence i in chunks of sizes(i), side by side with the others."""
    steps: list[list[Chunk]] = []
    for i, sequence in enumerate(sequences):
        for number, begin in enumerate(range(0, len(sequence), sizes(i))):
            if number == len(steps):
                steps.append([])
            steps[number].append(Chunk(i, begin, min(len(sequence), begin + sizes(i))))
    return steps
