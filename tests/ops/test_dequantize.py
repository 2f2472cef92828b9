"""GGUF's block formats against their definition in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from op_arrays import Floats, assert_same_bits, to_bfloat16

from fastpaged import _core

Bytes = npt.NDArray[np.uint8]


def halves(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def q4_1(data: Bytes) -> Floats:
    """Scale, minimum, then 16 bytes: low nibbles are the first half of the block."""
    blocks = data.reshape(-1, 20)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    return (halves(blocks[:, :2]) * nibbles + halves(blocks[:, 2:4])).reshape(-1)


def q8_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 34)
    numbers: Floats = blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    return (numbers * halves(blocks[:, :2])).reshape(-1)


def bf16(data: Bytes) -> Floats:
    floats: Floats = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return floats


def finite(data: Bytes, step: int, at: int, exponent: int) -> Bytes:
    """Clears a bit of each exponent, so that random bytes are finite numbers. at: the high byte of each number."""
    data[at::step] &= np.uint8(~exponent & 0xFF)
    return data


# kind: bytes of a block, elements of a block, its definition, and (step, byte, bit) that keep the numbers finite
KINDS: dict[str, tuple[int, int, Callable[[Bytes], Floats], list[tuple[int, int, int]]]] = {
    "Q4_1": (20, 32, q4_1, [(20, 1, 0x40), (20, 3, 0x40)]),
    "Q8_0": (34, 32, q8_0, [(34, 1, 0x40)]),
    "F16": (2, 1, halves, [(2, 1, 0x40)]),
    "F32": (4, 1, lambda data: data.view(np.float32), [(4, 3, 0x40)]),
    "BF16": (2, 1, bf16, [(2, 1, 0x40)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [1, 5, 100_000])
def test_blocks_become_the_numbers_they_stand_for(rng: np.random.Generator, kind: str, blocks: int) -> None:
    num_bytes, elements, definition, masks = KINDS[kind]
    data = rng.integers(0, 256, blocks * num_bytes).astype(np.uint8)
    for step, at, bit in masks:
        data = finite(data, step, at, bit)
    want = definition(data)
    device = _core.CpuDevice("scalar", 2)
    floats = np.zeros(blocks * elements, np.float32)
    _core.dequantize(device, kind, data, floats)
    assert_same_bits(floats, want)
    bits = np.zeros((blocks, elements), np.uint16)
    _core.dequantize(device, kind, data, bits)
    assert_same_bits(bits.reshape(-1), to_bfloat16(want))


def test_every_half_is_read_exactly_and_nan_stays_nan() -> None:
    data = np.arange(1 << 16, dtype=np.uint16)
    want = data.view(np.float16).astype(np.float32)
    got = np.zeros(1 << 16, np.float32)
    _core.dequantize(_core.CpuDevice("scalar", 1), "F16", data.view(np.uint8), got)
    numbers = ~np.isnan(want)
    assert_same_bits(got[numbers], want[numbers])
    assert np.isnan(got[~numbers]).all()
    rounded = np.zeros(1 << 16, np.uint16)
    _core.dequantize(_core.CpuDevice("scalar", 1), "F16", data.view(np.uint8), rounded)
    assert np.isnan((rounded.astype(np.uint32) << 16).view(np.float32)[~numbers]).all()


def test_wrong_sizes_and_unknown_kinds_are_named() -> None:
    device = _core.CpuDevice("scalar", 1)
    with pytest.raises(ValueError, match="kind must be one of Q4_1, Q8_0, F16, F32, BF16, got 'Q6_K'"):
        _core.dequantize(device, "Q6_K", np.zeros(20, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="data must hold out's 32 elements as Q4_1 .* got 19 bytes"):
        _core.dequantize(device, "Q4_1", np.zeros(19, np.uint8), np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="data must hold out's 33 elements as Q8_0"):
        _core.dequantize(device, "Q8_0", np.zeros(34, np.uint8), np.zeros(33, np.float32))
    with pytest.raises(ValueError, match="out must be contiguous"):
        _core.dequantize(device, "F32", np.zeros(16, np.uint8), np.zeros(8, np.float32)[::2])
    with pytest.raises(ValueError, match="data must be a contiguous array of uint8"):
        _core.dequantize(device, "F32", np.zeros(4, np.float32), np.zeros(4, np.float32))
