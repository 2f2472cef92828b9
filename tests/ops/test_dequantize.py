"""GGUF's block formats against the gguf package's own reading of them."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from op_arrays import Floats, assert_same_bits, to_bfloat16, to_float

from fastpaged import _core

Bytes = npt.NDArray[np.uint8]

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
# Where a block's halves are: its scale, and its minimum if it has one.
HALVES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
ODD_HALVES = np.array([0.0, -0.0, 6e-8, -6e-8, 6e-5, 65504, np.inf, -np.inf, np.nan], np.float16)


def block_size(kind: str) -> tuple[int, int]:
    """Elements and bytes."""
    elements, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return elements, num_bytes


def definition(kind: str, data: Bytes) -> Floats:
    num_bytes = block_size(kind)[1]
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(data.reshape(-1, num_bytes), gguf.GGMLQuantizationType[kind])
    return np.ascontiguousarray(values, np.float32).reshape(-1)


def dequantized(kind: str, data: Bytes, threads: int = 2) -> tuple[Floats, npt.NDArray[np.uint16]]:
    elements, num_bytes = block_size(kind)
    device = _core.CpuDevice("scalar", threads)
    floats = np.zeros(data.size // num_bytes * elements, np.float32)
    _core.dequantize(device, kind, data, floats)
    bits = np.zeros((data.size // num_bytes, elements), np.uint16)
    _core.dequantize(device, kind, data, bits)
    return floats, bits.reshape(-1)


def assert_is_definition(kind: str, data: Bytes) -> None:
    """Bit by bit, but for a NaN's own bits, which follow from the order of a product's factors."""
    floats, bits = dequantized(kind, data)
    want = definition(kind, data)
    number = ~np.isnan(want)
    assert_same_bits(floats[number], want[number])
    assert_same_bits(bits[number], to_bfloat16(want[number]))
    assert np.isnan(floats[~number]).all()
    assert np.isnan(to_float(bits[~number])).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [1, 5, 20_000])
def test_any_bytes_become_the_numbers_they_stand_for(rng: np.random.Generator, kind: str, blocks: int) -> None:
    assert_is_definition(kind, rng.integers(0, 256, blocks * block_size(kind)[1]).astype(np.uint8))


@pytest.mark.parametrize("kind", HALVES)
def test_scales_and_minima_of_every_sort_are_read(rng: np.random.Generator, kind: str) -> None:
    pairs = np.array(np.meshgrid(ODD_HALVES, ODD_HALVES), np.float16).reshape(2, -1)
    data = rng.integers(0, 256, (pairs.shape[1], block_size(kind)[1])).astype(np.uint8)
    for at, halves in zip(HALVES[kind], pairs, strict=False):
        data[:, at : at + 2] = halves.reshape(-1, 1).view(np.uint8)
    assert_is_definition(kind, data.reshape(-1))


@pytest.mark.parametrize("kind", HALVES)
def test_every_bit_of_a_block_counts(kind: str) -> None:
    """A block with halves of 1 and no element at 0, then the same with one bit after the other flipped."""
    num_bytes = block_size(kind)[1]
    data = np.full((8 * num_bytes + 1, num_bytes), 0x55, np.uint8)
    for at in HALVES[kind]:
        data[:, at : at + 2] = np.array([1], np.float16).view(np.uint8)
    for bit in range(8 * num_bytes):
        data[bit, bit // 8] ^= 1 << bit % 8
    assert_is_definition(kind, data.reshape(-1))
    values = dequantized(kind, data.reshape(-1))[0].reshape(len(data), -1)
    assert (values[:-1] != values[-1]).any(axis=1).all()


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_cut_between_threads_changes_nothing(rng: np.random.Generator, kind: str) -> None:
    data = rng.integers(0, 256, 5000 * block_size(kind)[1]).astype(np.uint8)
    one, three = dequantized(kind, data, 1), dequantized(kind, data, 3)
    assert one[0].tobytes() == three[0].tobytes()
    assert one[1].tobytes() == three[1].tobytes()


def test_every_half_is_read_exactly_and_nan_stays_nan() -> None:
    assert_is_definition("F16", np.arange(1 << 16, dtype=np.uint16).view(np.uint8))


def test_wrong_sizes_and_unknown_kinds_are_named() -> None:
    device = _core.CpuDevice("scalar", 1)
    with pytest.raises(ValueError, match=f"kind must be one of {', '.join(KINDS)}, got 'Q2_K'"):
        _core.dequantize(device, "Q2_K", np.zeros(20, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="data must hold out's 32 elements as Q4_1 .* got 19 bytes"):
        _core.dequantize(device, "Q4_1", np.zeros(19, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="data must hold out's 33 elements as Q8_0"):
        _core.dequantize(device, "Q8_0", np.zeros(34, np.uint8), np.zeros(33, np.float32))
    with pytest.raises(ValueError, match="data must hold out's 128 elements as Q6_K .210 bytes for each 256., got 105"):
        _core.dequantize(device, "Q6_K", np.zeros(105, np.uint8), np.zeros(128, np.float32))
    with pytest.raises(ValueError, match="out must be contiguous"):
        _core.dequantize(device, "F32", np.zeros(16, np.uint8), np.zeros(8, np.float32)[::2])
    with pytest.raises(ValueError, match="data must be a contiguous array of uint8"):
        _core.dequantize(device, "F32", np.zeros(4, np.float32), np.zeros(4, np.float32))
