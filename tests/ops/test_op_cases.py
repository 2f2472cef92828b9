"""The case list of op_cases, with the kernels of every instruction set and with TorchOps, in both dtypes: near float64;
and the bits of a kernel's row its own affair."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from isas import needs
from op_arrays import Dtype, assert_same_bits
from op_cases.cases import CASES, Case
from op_cases.run import Backend, KernelBackend, NumpyBackend, Rows, chunked, in_one_step, run
from op_cases.weights import NAN_TOKEN, VOCAB_SIZE

from fastpaged import _core

# Of float32 sums; and in bfloat16 of a rounding, or of two where a value lies near the middle between two of bfloat16.
TOLERANCE: dict[Dtype, float] = {"float32": 5e-5, "bfloat16": 2.0**-7}


# The AMX tables have their linear layers and attention to themselves.
every_kernel = pytest.mark.parametrize(
    ("isa", "case"),
    [
        pytest.param(isa, case, marks=needs(isa))
        for isa in _core.known_isas()
        for case in CASES
        if not isa.startswith("amx") or case.startswith(("linear", "attention"))
    ],
)


def sequences_of(case: Case) -> list[list[int]]:
    """With a cache, one of them reaches into a second span of keys."""
    rng = np.random.default_rng(7)
    lengths = (3, 275, 21) if case.kv else (1, 25, 6)
    return [[int(token) for token in rng.integers(0, VOCAB_SIZE, length)] for length in lengths]


def together(case: Case, backend: Backend) -> list[Rows]:
    sequences = sequences_of(case)
    return run(case, backend, sequences, in_one_step(sequences))


@cache
def in_float64(case: str, dtype: Dtype) -> list[Rows]:
    return together(CASES[case], NumpyBackend(dtype))


@cache
def with_kernels(isa: str, case: str, dtype: Dtype) -> list[Rows]:
    return together(CASES[case], KernelBackend(_core.CpuDevice(isa, 2), dtype))


def assert_close(got: list[Rows], want: list[Rows], dtype: Dtype, slack: float) -> None:
    for got_rows, want_rows in zip(got, want, strict=True):
        excess = np.abs(got_rows - want_rows) - (TOLERANCE[dtype] * slack) * (1.0 + np.abs(want_rows))
        assert excess.max() <= 0, f"off by {excess.max():.3g} more than allowed"  # not so for NaN


@every_kernel
def test_a_case_is_what_float64_makes_of_it(isa: str, case: str, dtype: Dtype) -> None:
    assert_close(with_kernels(isa, case, dtype), in_float64(case, dtype), dtype, CASES[case].slack)


@every_kernel
def test_the_bits_of_a_row_do_not_depend_on_company_cuts_blocks_or_threads(isa: str, case: str, dtype: Dtype) -> None:
    expected, sequences = with_kernels(isa, case, dtype), sequences_of(CASES[case])

    alone = KernelBackend(_core.CpuDevice(isa, 1), dtype)
    for sequence, want in zip(sequences, expected, strict=True):
        assert_same_bits(run(CASES[case], alone, [sequence], in_one_step([sequence]), block_size=1)[0], want)

    two_threads = KernelBackend(_core.CpuDevice(isa, 2), dtype)
    steps = chunked(sequences, lambda i: (1, 60, 8)[i])
    for got, want in zip(run(CASES[case], two_threads, sequences, steps, block_size=128), expected, strict=True):
        assert_same_bits(got, want)

    company = [[NAN_TOKEN] * 30, *sequences, [NAN_TOKEN] * 7]
    got_in_company = run(CASES[case], two_threads, company, in_one_step(company))
    for got, want in zip(got_in_company[1:-1], expected, strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("case", CASES)
def test_torch_makes_the_same_of_a_case(case: str, dtype: Dtype) -> None:
    torch_backend = pytest.importorskip("op_cases.torch_backend", exc_type=ModuleNotFoundError)
    torch_backend.torch.set_num_threads(1)  # more are slower with matrices as small as these
    got = together(CASES[case], torch_backend.TorchBackend(dtype))
    assert_close(got, in_float64(case, dtype), dtype, CASES[case].slack)
