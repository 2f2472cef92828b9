from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from op_arrays import NAN_BITS, Bits, Floats, assert_bfloat16_close, assert_same_bits, random_floats, to_bfloat16

from fastpaged import _core

# (query heads, KV heads, head size, block size)
SHAPES = [(9, 3, 64, 16), (4, 4, 16, 1), (8, 1, 48, 3), (2, 1, 128, 128), (3, 3, 80, 5), (2, 2, 256, 256)]
Ints = npt.NDArray[np.int32]


def cos_sin_table(positions: int, head_dim: int) -> Floats:
    angles = np.outer(np.arange(positions), 10000.0 ** (-2.0 * np.arange(head_dim // 2) / head_dim))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rotated(x: Floats, table: Floats) -> npt.NDArray[np.float64]:
    """x: [T, heads, D]; table: [T, D]."""
    half = x.shape[2] // 2
    low, high = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    cosine, sine = table[:, None, :half].astype(np.float64), table[:, None, half:].astype(np.float64)
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=2)


def run(
    device: _core.CpuDevice, qkv: Floats, positions: Ints, slots: Ints, table: Floats, cache: Bits, num_heads: int
) -> Bits:
    q = np.zeros((qkv.shape[0], num_heads, cache.shape[-1]), np.uint16)
    _core.rotary_cache_write(device, qkv, positions, slots, table, cache, q)
    return q


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size"), SHAPES)
def test_q_and_k_are_rotated_and_k_and_v_land_in_their_slots(
    device: _core.CpuDevice,
    rng: np.random.Generator,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    tokens, num_blocks = 21, -(-42 // block_size)
    qkv = random_floats(rng, tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    positions = rng.integers(0, 500, tokens).astype(np.int32)
    slots = rng.permutation(num_blocks * block_size)[:tokens].astype(np.int32)
    table = cos_sin_table(500, head_dim)
    layers = np.full((num_blocks, 3, 2, num_kv_heads, block_size, head_dim), NAN_BITS, np.uint16)
    q = run(device, qkv, positions, slots, table, layers[:, 1], num_heads)

    heads = qkv.reshape(tokens, -1, head_dim)
    want_q = rotated(heads[:, :num_heads], table[positions])
    want_k = rotated(heads[:, num_heads : num_heads + num_kv_heads], table[positions])
    block, offset = slots // block_size, slots % block_size
    assert_bfloat16_close(q, want_q, slack=1e-5)
    assert_bfloat16_close(layers[block, 1, 0, :, offset], want_k, slack=1e-5)
    assert_same_bits(layers[block, 1, 1, :, offset], to_bfloat16(heads[:, num_heads + num_kv_heads :]))
    # Nothing else is touched: other layers, and slots that no token has.
    layers[block, 1, :, :, offset] = NAN_BITS
    assert (layers == NAN_BITS).all()


def test_a_token_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, rng: np.random.Generator
) -> None:
    tokens, table = 70, cos_sin_table(100, 48)
    qkv = random_floats(rng, tokens, (4 + 2 * 2) * 48)
    positions = rng.integers(0, 100, tokens).astype(np.int32)
    slots = rng.permutation(80)[:tokens].astype(np.int32)
    caches = [np.zeros((16, 2, 2, 5, 48), np.uint16) for _ in range(3)]
    together = run(device, qkv, positions, slots, table, caches[0], 4)
    assert_same_bits(run(one_thread, qkv, positions, slots, table, caches[1], 4), together)
    for t in range(tokens):
        one = slice(t, t + 1)
        assert_same_bits(run(device, qkv[one], positions[one], slots[one], table, caches[2], 4), together[one])
    assert_same_bits(caches[1], caches[0])
    assert_same_bits(caches[2], caches[0])


def test_positions_and_slots_beyond_their_arrays_are_refused(device: _core.CpuDevice) -> None:
    qkv, table = np.zeros((1, 3 * 16), np.float32), cos_sin_table(10, 16)
    cache = np.zeros((2, 2, 1, 4, 16), np.uint16)
    zero = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=r"rotary_cache_write: slot_mapping must be in 0\.\.7, got 8"):
        run(device, qkv, zero, zero + 8, table, cache, 1)
    with pytest.raises(ValueError, match=r"rotary_cache_write: positions must be in 0\.\.9, got -1"):
        run(device, qkv, zero - 1, zero, table, cache, 1)
    with pytest.raises(ValueError, match=r"rotary_cache_write: qkv must be float32 \[T=1, \(Hq \+ 2 Hkv\) \* D=64\]"):
        run(device, qkv, zero, zero, table, cache, 2)
