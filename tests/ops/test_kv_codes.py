"""8-bit KV through the ops: what is written is what numpy makes of it, what is read is near softmax over that, and the
bits of a row are its own affair within each dtype."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from attention_cases import NO_RULE, Chunk, Rule, assert_close, attend, kept_in, random_sequence, softmax_attention
from isas import needs
from kv_codes import CODE_DTYPES, CodeDtype, code_bytes, no_codes, quantized
from op_arrays import Dtype, assert_same_bits, random_floats
from op_cases.cases import ATTENTION, CASES
from op_cases.run import KernelBackend, NumpyBackend, Rows, chunked, in_one_step, run
from op_cases.weights import NAN_TOKEN, VOCAB_SIZE

from fastpaged import _core

TOLERANCE: dict[Dtype, float] = {"float32": 5e-5, "bfloat16": 2.0**-7}
# What one step between codes is, of the largest of a vector, and what it may make of an output near 4.
STEP: dict[CodeDtype, float] = {"fp8_e4m3": 0.5, "fp8_e5m2": 1.0, "int8": 0.1}


@pytest.fixture(params=CODE_DTYPES)
def code_dtype(request: pytest.FixtureRequest) -> CodeDtype:
    name: CodeDtype = request.param
    return name


@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (16, 1), (80, 48), (256, 5)])
def test_codes_and_scales_land_in_their_slots_and_touch_no_other(
    device: _core.CpuDevice,
    rng: np.random.Generator,
    dtype: Dtype,
    code_dtype: CodeDtype,
    head_dim: int,
    block_size: int,
) -> None:
    tokens, num_kv_heads, num_blocks = 21, 2, -(-42 // block_size)
    qkv = random_floats(rng, tokens, 3, num_kv_heads, head_dim)
    qkv[3, 1, 0] = 0.0  # a key of zeros
    qkv[5, 2, 1] *= np.float32(1e-20)
    slots = rng.permutation(num_blocks * block_size)[:tokens].astype(np.int32)
    shape = (num_blocks, 3, 2, num_kv_heads, block_size, head_dim)
    layers = no_codes(*shape)
    q = np.zeros((tokens, num_kv_heads, head_dim), np.uint16 if dtype == "bfloat16" else np.float32)
    _core.rotary_cache_write(
        device, qkv.reshape(tokens, -1), None, slots, None, layers[:, 1], q, kv_cache_dtype=code_dtype
    )

    codes = np.full(shape, 0xFF, np.uint8)
    scales = np.full(shape[:-1], 0xFFFFFFFF, np.uint32).view(np.float32)
    block, offset = slots // block_size, slots % block_size
    codes[block, 1, :, :, offset], scales[block, 1, :, :, offset] = quantized(qkv[:, 1:], code_dtype)
    assert_same_bits(layers, code_bytes(codes, scales, dtype))


@pytest.mark.parametrize(
    ("heads", "block_size", "rule"),
    [
        ((9, 3, 64), 16, NO_RULE),
        ((8, 1, 128), 256, Rule(window=100, soft_cap=5.0)),
        ((3, 3, 32), 3, Rule(window=90, alibi=True)),
    ],
)
def test_attention_is_softmax_attention_over_what_the_codes_are_worth(
    device: _core.CpuDevice,
    rng: np.random.Generator,
    dtype: Dtype,
    code_dtype: CodeDtype,
    heads: tuple[int, int, int],
    block_size: int,
    rule: Rule,
) -> None:
    spans = [(0, 1), (0, 40), (37, 38), (250, 260), (255, 256), (256, 257), (500, 530)]
    chunks = [Chunk(random_sequence(rng, dtype, end, *heads), begin, end) for begin, end in spans]
    outputs = attend(device, chunks, block_size, rule, kv_cache_dtype=code_dtype)
    for got, chunk in zip(outputs, chunks, strict=True):
        kept = Chunk(kept_in(code_dtype, chunk.sequence), chunk.begin, chunk.end)
        assert_close(got, softmax_attention(kept, rule))


# Each case of attention in one of the three, which differ in nothing but how a code is read.
ATTENTION_CASES = [
    (f"attention, {name}", CODE_DTYPES[number % len(CODE_DTYPES)]) for number, name in enumerate(ATTENTION)
]
every_kernel = pytest.mark.parametrize(
    ("isa", "case", "code_dtype"),
    [
        pytest.param(isa, case, code_dtype, marks=needs(isa))
        for isa in _core.known_isas()
        for case, code_dtype in ATTENTION_CASES
    ],
)


def sequences() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [[int(token) for token in rng.integers(0, VOCAB_SIZE, length)] for length in (3, 275, 21)]


@cache
def in_float64(case: str, dtype: Dtype, code_dtype: CodeDtype) -> list[Rows]:
    return run(CASES[case], NumpyBackend(dtype, code_dtype), sequences(), in_one_step(sequences()))


@cache
def with_kernels(isa: str, case: str, dtype: Dtype, code_dtype: CodeDtype) -> list[Rows]:
    backend = KernelBackend(_core.CpuDevice(isa, 2), dtype, code_dtype)
    return run(CASES[case], backend, sequences(), in_one_step(sequences()))


def assert_close_but_for_a_code(got: list[Rows], want: list[Rows], dtype: Dtype, code_dtype: CodeDtype) -> None:
    """Where a number lies near the middle between two codes, or two scales of fp8 are as good as each other, the last
    bit of a sum says which it gets, and whatever reads it hears of that."""
    for got_rows, want_rows in zip(got, want, strict=True):
        error = np.abs(got_rows - want_rows)
        within = error <= TOLERANCE[dtype] * (1.0 + np.abs(want_rows))  # not so for NaN
        if code_dtype == "int8":
            assert within.mean() >= 0.98, f"{within.size - within.sum()} of {within.size} are off"
        assert error.mean() <= 0.1 * STEP[code_dtype]
        assert error.max() <= STEP[code_dtype]


@every_kernel
def test_a_case_is_what_float64_makes_of_it(isa: str, case: str, dtype: Dtype, code_dtype: CodeDtype) -> None:
    got = with_kernels(isa, case, dtype, code_dtype)
    assert_close_but_for_a_code(got, in_float64(case, dtype, code_dtype), dtype, code_dtype)


@every_kernel
def test_the_bits_of_a_row_do_not_depend_on_company_cuts_blocks_or_threads(
    isa: str, case: str, dtype: Dtype, code_dtype: CodeDtype
) -> None:
    expected = with_kernels(isa, case, dtype, code_dtype)

    alone = KernelBackend(_core.CpuDevice(isa, 1), dtype, code_dtype)
    for sequence, want in zip(sequences(), expected, strict=True):
        assert_same_bits(run(CASES[case], alone, [sequence], in_one_step([sequence]), block_size=1)[0], want)

    two_threads = KernelBackend(_core.CpuDevice(isa, 2), dtype, code_dtype)
    steps = chunked(sequences(), lambda i: (1, 60, 8)[i])
    for got, want in zip(run(CASES[case], two_threads, sequences(), steps, block_size=128), expected, strict=True):
        assert_same_bits(got, want)

    company = [[NAN_TOKEN] * 30, *sequences(), [NAN_TOKEN] * 7]
    got_in_company = run(CASES[case], two_threads, company, in_one_step(company))
    for got, want in zip(got_in_company[1:-1], expected, strict=True):
        assert_same_bits(got, want)
    assert np.isnan(got_in_company[0]).all()


@pytest.mark.parametrize(("case", "code_dtype"), ATTENTION_CASES)
def test_torch_makes_the_same_of_a_case(case: str, dtype: Dtype, code_dtype: CodeDtype) -> None:
    torch_backend = pytest.importorskip("op_cases.torch_backend", exc_type=ModuleNotFoundError)
    torch_backend.torch.set_num_threads(1)
    got = run(CASES[case], torch_backend.TorchBackend(dtype, code_dtype), sequences(), in_one_step(sequences()))
    assert_close_but_for_a_code(got, in_float64(case, dtype, code_dtype), dtype, code_dtype)


def test_torch_makes_zeros_of_what_is_too_small_and_nan_of_what_is_not_finite(code_dtype: CodeDtype) -> None:
    torch = pytest.importorskip("torch", exc_type=ModuleNotFoundError)
    from fastpaged.ops.torch_kv_codes import through_codes

    x = torch.ones(4, 16)
    x[0] *= 2.0**-101
    x[1, 3], x[2, 5] = torch.inf, torch.nan
    kept = through_codes(x, code_dtype)
    assert (kept[0] == 0.0).all() and kept[1:3].isnan().all() and (kept[3] == 1.0).all()


def test_bad_arguments_are_named(device: _core.CpuDevice, code_dtype: CodeDtype) -> None:
    def attention(cache: np.ndarray, dtype: str = code_dtype) -> None:  # type: ignore[type-arg]
        q, out = np.zeros((1, 2, 32), np.float32), np.zeros((1, 64), np.float32)
        start, lens, tables = np.array([0, 1], np.int32), np.array([1], np.int32), np.zeros((1, 1), np.int32)
        _core.paged_attention(device, q, cache, start, lens, tables, out, 1.0, kv_cache_dtype=dtype)

    attention(no_codes(2, 2, 1, 16, 32))
    with pytest.raises(ValueError, match=r"kv_cache must be bytes .* with head_dim 32.*got a last axis of 575"):
        attention(np.zeros((2, 2, 1, 575), np.uint8))
    with pytest.raises(ValueError, match="kv_cache must be bytes .*contiguous along the last axis"):
        attention(np.zeros((2, 2, 1, 1152), np.uint8)[..., ::2])
    with pytest.raises(ValueError, match="kv_cache must be aligned to 4 bytes, with its strides"):
        attention(np.zeros((2, 2, 1, 577), np.uint8)[..., :576])
    with pytest.raises(ValueError, match=r"block_size must be in 1\.\.256, got 257"):
        attention(no_codes(1, 2, 1, 257, 32))
    with pytest.raises(ValueError, match="kv_cache must be an array of uint8"):
        attention(np.zeros((2, 2, 1, 16, 32), np.float32))
    with pytest.raises(ValueError, match=r"kv_cache must be .*\[num_blocks=2, 2=2, Hkv, block_size, D=32\]"):
        attention(np.zeros((2, 3, 1, 576), np.uint8))
    with pytest.raises(ValueError, match=r"kv_cache_dtype must be 'auto', .*, got 'fp4'"):
        attention(no_codes(2, 2, 1, 16, 32), "fp4")
    with pytest.raises(ValueError, match="kv_cache must be an array of uint16"):
        attention(no_codes(2, 2, 1, 16, 32), "auto")
