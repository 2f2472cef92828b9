"""TorchOps: chunks, blocks and company change nothing of a case; what does not fit is refused by name.

That it computes the cases at all is seen in test_op_cases.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from models.step_arrays import Chunk
from op_arrays import Dtype
from op_cases.cases import CASES, Case
from op_cases.run import chunked, in_one_step, run
from op_cases.torch_backend import TorchBackend
from op_cases.weights import NAN_TOKEN, VOCAB_SIZE

from fastpaged.ops.torch_batch import TorchBatch
from fastpaged.ops.torch_ops import TorchOps

# Of float32 sums in another order; in bfloat16 of the rounding that such a difference may tip.
TOLERANCE: dict[Dtype, float] = {"float32": 2e-5, "bfloat16": 2.0**-7}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More are slower with arrays as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    name: Dtype = request.param
    return name


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.kv], ids=lambda case: case.name)
def test_chunks_blocks_and_company_of_nan_change_nothing_but_the_last_digits(case: Case, dtype: Dtype) -> None:
    rng = np.random.default_rng(7)
    sequences = [[int(token) for token in rng.integers(0, VOCAB_SIZE, length)] for length in (3, 287, 21)]
    want = run(case, TorchBackend(dtype), sequences, in_one_step(sequences))
    company = [*sequences, [NAN_TOKEN] * 9]
    got = run(case, TorchBackend(dtype), company, chunked(company, lambda i: (1, 60, 8, 5)[i]), block_size=5)
    for got_rows, want_rows in zip(got[:3], want, strict=True):
        excess = np.abs(got_rows - want_rows) - TOLERANCE[dtype] * (1.0 + np.abs(want_rows))
        assert excess.max() <= 0, f"off by {excess.max():.3g} more than allowed"  # not so for NaN


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
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
    with pytest.raises(ValueError, match=r"gated_linear: weight must have as many gates as ups, got 5 rows in all"):
        ops().gated_linear(x, torch.ones(5, 3), None, "silu")
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
        ops().linear(x, torch.ones(4, 3), None, wrong)
