from __future__ import annotations

import numpy as np
import pytest
from op_arrays import assert_same_bits, random_floats

from fastpaged import _core


@pytest.mark.parametrize("hidden", [1, 16, 33, 576])
def test_x_becomes_the_sum(device: _core.CpuDevice, rng: np.random.Generator, hidden: int) -> None:
    x, y = random_floats(rng, 40, hidden), random_floats(rng, 40, hidden)
    x[::7] = np.nan
    want = x + y
    _core.add(device, x, y)
    np.testing.assert_array_equal(x, want)
    assert_same_bits(x[1], want[1])


def test_another_shape_is_refused(device: _core.CpuDevice) -> None:
    with pytest.raises(ValueError, match=r"add: y must be float32 \[T=2, H=3\], got float32 \[1, 3\]"):
        _core.add(device, np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32))
