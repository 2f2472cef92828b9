from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from kv_layout import untiled
from op_arrays import (
    Array,
    Doubles,
    Dtype,
    Floats,
    assert_close,
    assert_same_bits,
    nan_like,
    random_array,
    random_floats,
    to_bfloat16,
)

from fastpaged import _core

EPS = 1e-6

# (query heads, KV heads, head size, block size, how much of a head turns, whether heads are normed)
SHAPES = [
    (9, 3, 64, 16, 64, False),
    (4, 4, 16, 1, 16, True),
    (8, 1, 48, 3, 0, False),
    (2, 1, 128, 128, 128, True),
    (3, 3, 80, 5, 32, False),
    (2, 1, 96, 16, 26, True),
    (2, 1, 112, 16, 2, False),
    (2, 2, 256, 256, 256, False),
    (1, 1, 32, 16, 0, True),
]
Ints = npt.NDArray[np.int32]


def cos_sin_table(positions: int, head_dim: int) -> Floats:
    angles = np.outer(np.arange(positions), 10000.0 ** (-2.0 * np.arange(head_dim // 2) / head_dim))
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rotated(x: Doubles, table: Floats) -> Doubles:
    """x: [T, heads, D]; table: [T, rotary]."""
    half = table.shape[1] // 2
    low, high = x[..., :half], x[..., half : 2 * half]
    cosine, sine = table[:, None, :half].astype(np.float64), table[:, None, half:].astype(np.float64)
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine, x[..., 2 * half :]], axis=2)


def normed(x: Floats, weight: Floats | None) -> Doubles:
    exact = x.astype(np.float64)
    return exact if weight is None else exact / np.sqrt((exact**2).mean(axis=2, keepdims=True) + EPS) * weight


def run(
    device: _core.CpuDevice,
    qkv: Floats,
    positions: Ints | None,
    slots: Ints,
    table: Floats | None,
    cache: Array,
    num_heads: int,
    norms: tuple[Floats | None, Floats | None] = (None, None),
) -> Array:
    q = np.zeros((qkv.shape[0], num_heads, cache.shape[-1]), cache.dtype)
    _core.rotary_cache_write(device, qkv, positions, slots, table, cache, q, *norms, EPS)
    return q


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size", "rotary", "norm"), SHAPES)
def test_q_and_k_are_normed_and_rotated_and_k_and_v_land_in_their_slots(
    device: _core.CpuDevice,
    rng: np.random.Generator,
    dtype: Dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    rotary: int,
    norm: bool,
) -> None:
    tokens, num_blocks = 21, -(-42 // block_size)
    qkv = random_floats(rng, tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    positions = rng.integers(0, 500, tokens).astype(np.int32)
    slots = rng.permutation(num_blocks * block_size)[:tokens].astype(np.int32)
    table = cos_sin_table(500, rotary)
    q_norm, k_norm = (random_floats(rng, head_dim) if norm else None for _ in range(2))
    empty = nan_like(random_array(rng, dtype), (num_blocks, 3, 2, num_kv_heads, block_size, head_dim))
    layers = empty.copy()
    given = table if rotary else None
    q = run(device, qkv, positions if rotary else None, slots, given, layers[:, 1], num_heads, (q_norm, k_norm))

    layers = untiled(layers)
    heads = qkv.reshape(tokens, -1, head_dim)
    want_q = rotated(normed(heads[:, :num_heads], q_norm), table[positions])
    want_k = rotated(normed(heads[:, num_heads : num_heads + num_kv_heads], k_norm), table[positions])
    block, offset = slots // block_size, slots % block_size
    assert_close(q, want_q, slack=1e-5)
    assert_close(layers[block, 1, 0, :, offset], want_k, slack=1e-5)
    v = heads[:, num_heads + num_kv_heads :]
    assert_same_bits(layers[block, 1, 1, :, offset], to_bfloat16(v) if dtype == "bfloat16" else v)
    # Nothing else is touched: other layers, and slots that no token has.
    layers[block, 1, :, :, offset] = empty[block, 1, :, :, offset]
    assert_same_bits(layers, empty)


def test_a_token_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    tokens, table = 70, cos_sin_table(100, 40)
    norms = (random_floats(rng, 48), random_floats(rng, 48))
    qkv = random_floats(rng, tokens, (4 + 2 * 2) * 48)
    positions = rng.integers(0, 100, tokens).astype(np.int32)
    slots = rng.permutation(80)[:tokens].astype(np.int32)
    caches = [np.zeros((16, 2, 2, 5, 48), np.uint16 if dtype == "bfloat16" else np.float32) for _ in range(3)]
    together = run(device, qkv, positions, slots, table, caches[0], 4, norms)
    assert_same_bits(run(one_thread, qkv, positions, slots, table, caches[1], 4, norms), together)
    for t in range(tokens):
        one = slice(t, t + 1)
        got = run(device, qkv[one], positions[one], slots[one], table, caches[2], 4, norms)
        assert_same_bits(got, together[one])
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
    for rotary in (3, 0, 18):
        with pytest.raises(ValueError, match=rf"rotary must be .*, got {rotary}"):
            run(device, qkv, zero, zero, np.zeros((10, rotary), np.float32), cache, 1)
    with pytest.raises(ValueError, match="q_norm and k_norm must be given both or neither"):
        run(device, qkv, zero, zero, table, cache, 1, (np.ones(16, np.float32), None))
    with pytest.raises(ValueError, match=r"k_norm must be float32 \[D=16\], got float32 \[15\]"):
        run(device, qkv, zero, zero, table, cache, 1, (np.ones(16, np.float32), np.ones(15, np.float32)))
    with pytest.raises(ValueError, match=r"rotary_cache_write: kv_cache must be float32 .*, got bfloat16"):
        _core.rotary_cache_write(device, qkv, zero, zero, table, cache, np.zeros((1, 1, 16), np.float32))
