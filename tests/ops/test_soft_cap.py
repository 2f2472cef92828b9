from __future__ import annotations

import numpy as np
import pytest
from op_arrays import random_floats

from fastpaged import _core


@pytest.mark.parametrize("cap", [0.5, 30.0, 1000.0])
@pytest.mark.parametrize("size", [1, 16, 33])
def test_scores_bend_towards_the_cap(device: _core.CpuDevice, rng: np.random.Generator, size: int, cap: float) -> None:
    """Small ones are as they were, to the last digits; the largest are the cap."""
    sizes = cap * np.geomspace(1e-9, 1e11, 40)
    x = (random_floats(rng, 40, size) * sizes[:, None]).astype(np.float32)
    want = cap * np.tanh(x.astype(np.float64) / cap)
    _core.soft_cap(device, x, cap)
    np.testing.assert_allclose(x, want, rtol=1e-6)


def test_nan_stays_nan_and_infinity_becomes_the_cap(device: _core.CpuDevice) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0.0]], np.float32)
    _core.soft_cap(device, x, 5.0)
    np.testing.assert_array_equal(x, [[np.nan, 5.0, -5.0, 0.0]])


@pytest.mark.parametrize("cap", [1e-30, 1.0, 3e38])
def test_numbers_of_any_size_stay_within_the_cap_and_keep_their_sign(device: _core.CpuDevice, cap: float) -> None:
    """The quotient may overflow or be too small for a float32, and zero has a sign."""
    largest = np.finfo(np.float32).max
    x = np.tile(np.array([[largest, -largest, 1e30, -1e30, 0.0, -0.0, 1e-20, -1e-20]], np.float32), 3)
    want = cap * np.tanh(x.astype(np.float64) / cap)
    signs = np.signbit(x)
    _core.soft_cap(device, x, cap)
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=cap * np.finfo(np.float32).tiny)
    np.testing.assert_array_equal(np.signbit(x), signs)


def test_a_cap_that_is_none_is_refused(device: _core.CpuDevice) -> None:
    for cap in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=r"soft_cap: cap must be finite and > 0, got"):
            _core.soft_cap(device, np.zeros((1, 1), np.float32), cap)
