from __future__ import annotations

import numpy as np
import pytest
from op_arrays import Dtype, assert_same_bits, random_array, random_bfloat16, random_floats, values_of

from fastpaged import _core


@pytest.mark.parametrize("hidden", [1, 16, 33, 576])
def test_embedding_looks_up_rows_exactly(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, hidden: int
) -> None:
    table = random_array(rng, dtype, 50, hidden)
    token_ids = rng.integers(0, 50, 200).astype(np.int32)
    out = np.zeros((200, hidden), np.float32)
    _core.embedding(device, token_ids, table, out)
    assert_same_bits(out, values_of(table)[token_ids].astype(np.float32))


def test_a_row_is_scaled_before_its_position_is_added(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    table, position_table = random_array(rng, dtype, 50, 47), random_floats(rng, 9, 47)
    token_ids, positions = (rng.integers(0, limit, 31).astype(np.int32) for limit in (50, 9))
    out = np.zeros((31, 47), np.float32)
    _core.embedding(device, token_ids, table, out, positions, position_table, 1.7)
    want = values_of(table)[token_ids] * np.float64(np.float32(1.7)) + position_table[positions]
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


def test_positions_outside_their_table_are_refused_and_without_a_table_not_looked_at(device: _core.CpuDevice) -> None:
    token_ids, table = np.zeros(1, np.int32), np.zeros((4, 8), np.float32)
    out, positions = np.zeros((1, 8), np.float32), np.array([9], np.int32)
    _core.embedding(device, token_ids, table, out, positions)
    with pytest.raises(ValueError, match=r"embedding: positions must be in 0\.\.8, got 9"):
        _core.embedding(device, token_ids, table, out, positions, np.zeros((9, 8), np.float32))
    with pytest.raises(ValueError, match=r"embedding: positions must be int32 \[T=1\], got nothing"):
        _core.embedding(device, token_ids, table, out, None, np.zeros((9, 8), np.float32))
    with pytest.raises(ValueError, match=r"embedding: position_table must be float32 \[max_positions=9, H=8\]"):
        _core.embedding(device, token_ids, table, out, positions, np.zeros((9, 7), np.float32))
    with pytest.raises(ValueError, match="embedding: scale must be finite, got inf"):
        _core.embedding(device, token_ids, table, out, scale=np.inf)


def test_token_ids_outside_the_vocabulary_are_refused(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    table = random_bfloat16(rng, 50, 8)
    out = np.zeros((1, 8), np.float32)
    for bad in (-1, 50):
        with pytest.raises(ValueError, match=rf"embedding: token_ids must be in 0\.\.49, got {bad}"):
            _core.embedding(device, np.array([bad], np.int32), table, out)
    with pytest.raises(ValueError, match="token_ids must be an array of int32"):
        _core.embedding(device, np.array([1], np.int64), table, out)
