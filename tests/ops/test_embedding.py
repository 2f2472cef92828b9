from __future__ import annotations

import numpy as np
import pytest
from op_arrays import assert_same_bits, random_bfloat16, to_float

from fastpaged import _core


@pytest.mark.parametrize("hidden", [1, 16, 33, 576])
def test_embedding_looks_up_rows_exactly(device: _core.CpuDevice, rng: np.random.Generator, hidden: int) -> None:
    table = random_bfloat16(rng, 50, hidden)
    token_ids = rng.integers(0, 50, 200).astype(np.int32)
    out = np.zeros((200, hidden), np.float32)
    _core.embedding(device, token_ids, table, out)
    assert_same_bits(out, to_float(table)[token_ids])


def test_token_ids_outside_the_vocabulary_are_refused(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    table = random_bfloat16(rng, 50, 8)
    out = np.zeros((1, 8), np.float32)
    for bad in (-1, 50):
        with pytest.raises(ValueError, match=rf"embedding: token_ids must be in 0\.\.49, got {bad}"):
            _core.embedding(device, np.array([bad], np.int32), table, out)
    with pytest.raises(ValueError, match="token_ids must be an array of int32"):
        _core.embedding(device, np.array([1], np.int64), table, out)
