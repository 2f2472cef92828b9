"""The case list of op_cases with TorchOps: near float64 in both dtypes, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

import torch
from models.step_arrays import Chunk, StepArrays
from op_cases.cases import CASES, Case
from op_cases.numpy_ops import Dtype
from op_cases.run import NumpyBackend, Rows, chunked, in_one_step, run
from op_cases.weights import NAN_TOKEN, VOCAB_SIZE, CaseWeights

from fastpaged.ops.torch_batch import TorchBatch
from fastpaged.ops.torch_ops import TorchOps

# Of float32 sums; and in bfloat16 of a rounding, or of two where a value lies near the middle between two of bfloat16.
TOLERANCE: dict[Dtype, float] = {"float32": 5e-5, "bfloat16": 2.0**-7}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More are slower with arrays as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TorchCaseWeights(CaseWeights):
    """As TorchOps takes them."""

    def _as_floats(self, values: npt.NDArray[np.float32]) -> Any:
        return torch.from_numpy(values)

    def _as_table(self, values: npt.NDArray[np.float32]) -> Any:
        return torch.from_numpy(values).to(getattr(torch, self.dtype))

    def _as_linear(self, values: npt.NDArray[np.float32]) -> Any:
        return self._as_table(values)


class TorchBackend:
    def __init__(self, dtype: Dtype) -> None:
        self.dtype: Dtype = dtype

    def weights(self, case: str) -> CaseWeights:
        return TorchCaseWeights(case, self.dtype)

    def cache(self, shape: tuple[int, ...]) -> Any:
        return torch.full(shape, torch.nan, dtype=getattr(torch, self.dtype))

    def ops(self, step: StepArrays, cache: Any) -> TorchOps:
        return TorchOps(TorchBatch.of(step), cache)


@pytest.fixture(params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    name: Dtype = request.param
    return name


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def assert_close(got: list[Rows], want: list[Rows], tolerance: float) -> None:
    for got_rows, want_rows in zip(got, want, strict=True):
        excess = np.abs(got_rows - want_rows) - tolerance * (1.0 + np.abs(want_rows))
        assert excess.max() <= 0, f"off by {excess.max():.3g} more than allowed"  # not so for NaN


def test_a_case_is_what_float64_makes_of_it_whole_in_chunks_and_beside_nan(case: Case, dtype: Dtype) -> None:
    rng = np.random.default_rng(7)
    lengths = (3, 287, 21) if case.kv else (1, 25, 6)
    sequences = [[int(token) for token in rng.integers(0, VOCAB_SIZE, length)] for length in lengths]
    want = run(case, NumpyBackend(dtype), sequences, in_one_step(sequences))
    assert_close(run(case, TorchBackend(dtype), sequences, in_one_step(sequences)), want, TOLERANCE[dtype])
    steps = chunked(sequences, lambda i: (1, 60, 8)[i])
    assert_close(run(case, TorchBackend(dtype), sequences, steps, block_size=5), want, TOLERANCE[dtype])
    company = [[NAN_TOKEN] * 9, *sequences]
    assert_close(run(case, TorchBackend(dtype), company, in_one_step(company))[1:], want, TOLERANCE[dtype])


def test_a_step_of_no_rows_is_none_of_anything(case: Case, dtype: Dtype) -> None:
    rows = run(case, TorchBackend(dtype), [[5, 9], [1]], [[Chunk(0, 0, 2), Chunk(1, 0, 0)]])
    assert len(rows[0]) == 2 and len(rows[1]) == 0


def batch(**changes: Any) -> TorchBatch:
    arrays = {
        "token_ids": [3, 1],
        "positions": [0, 1],
        "slot_mapping": [4, 5],
        "query_start": [0, 2],
        "context_lens": [2],
        "block_tables": [[1]],
        "sample_rows": [1],
    }
    return TorchBatch(**{name: torch.tensor(values) for name, values in (arrays | changes).items()})


def ops(dtype: torch.dtype = torch.float32) -> TorchOps:
    return TorchOps(batch(), torch.zeros(2, 1, 2, 1, 4, 2, dtype=dtype))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": [0]}, r"positions must have shape \[2\], got \[1\]"),
        ({"slot_mapping": [0, 1, 2]}, r"slot_mapping must have shape \[2\], got \[3\]"),
        ({"query_start": [0, 1, 2]}, r"query_start must have shape \[2\], got \[3\]"),
        ({"block_tables": [[1], [0]]}, r"block_tables must have shape \[1, 1\], got \[2, 1\]"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch(**changes)


def test_what_an_op_cannot_take_is_refused_by_its_name() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"kv_cache must be of dtype float32 or bfloat16, got torch\.float16"):
        ops(torch.float16)
    with pytest.raises(ValueError, match=r"kv_cache must have shape .*, got \[2, 1\]"):
        TorchOps(batch(), torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"linear: x and weight must be torch\.bfloat16, got torch\.float32 and"):
        ops(torch.bfloat16).linear(x, torch.ones(4, 3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="attention: qkv must have 6 columns, got 3"):
        ops().attention(x, 0, num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0)
    with pytest.raises(ValueError, match=r"add: x and y must have one shape, got \[2, 3\] and \[1, 3\]"):
        ops().add(x, torch.ones(1, 3))
    wrong: Any = "positions"
    with pytest.raises(ValueError, match="embedding: token_ids must be the batch's token_ids, got 'positions'"):
        ops().embedding(wrong, x)
    with pytest.raises(ValueError, match="rows: sample_rows must be the batch's sample_rows, got 'positions'"):
        ops().rows(x, wrong)
    with pytest.raises(ValueError, match="activation must be one of silu, gelu, gelu_tanh, relu, got 'positions'"):
        ops().activation(x, wrong)
