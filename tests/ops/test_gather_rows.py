from __future__ import annotations

import numpy as np
import pytest
from op_arrays import assert_same_bits, random_floats

from fastpaged import _core


@pytest.mark.parametrize("hidden", [1, 16, 33, 576])
def test_gather_rows_copies_rows_exactly(device: _core.CpuDevice, rng: np.random.Generator, hidden: int) -> None:
    x = random_floats(rng, 40, hidden)
    x[::7] = np.nan
    rows = rng.integers(0, 40, 90).astype(np.int32)
    out = np.zeros((90, hidden), np.float32)
    _core.gather_rows(device, x, rows, out)
    assert_same_bits(out, x[rows])


def test_no_rows_are_no_work(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    _core.gather_rows(device, random_floats(rng, 3, 8), np.zeros(0, np.int32), np.zeros((0, 8), np.float32))


def test_rows_that_do_not_exist_are_refused(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=r"gather_rows: rows must be in 0\.\.2, got 3"):
        _core.gather_rows(device, random_floats(rng, 3, 8), np.array([3], np.int32), np.zeros((1, 8), np.float32))
