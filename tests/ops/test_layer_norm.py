from __future__ import annotations

import numpy as np
import pytest
from op_arrays import Dtype, assert_close, assert_same_bits, random_floats, values_of

from fastpaged import _core

EPS = 1e-5


@pytest.mark.parametrize("hidden", [1, 15, 16, 64, 65, 576, 2048])
@pytest.mark.parametrize("adds", [False, True])
def test_layer_norm_divides_what_differs_from_the_mean_by_its_deviation(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, hidden: int, adds: bool
) -> None:
    x = random_floats(rng, 37, hidden, scale=3.0) + np.float32(2.0)
    residual = random_floats(rng, 37, hidden) if adds else None
    weight, bias = random_floats(rng, hidden), random_floats(rng, hidden) if adds else None
    total = x + residual if residual is not None else x.copy()
    out = np.zeros(x.shape, np.uint16 if dtype == "bfloat16" else np.float32)
    _core.layer_norm(device, x, residual, weight, bias, EPS, out)
    assert_same_bits(x, total)  # the sum stays in x; without a residual x is untouched
    exact = total.astype(np.float64)
    centred = exact - exact.mean(axis=1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS) * weight
    assert_close(out, want + (0.0 if bias is None else bias), slack=1e-5)


def test_a_large_mean_costs_no_digits(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    """As E[x^2] - E[x]^2 in float32 would: it is 0 or worse here."""
    x = (rng.integers(-8, 9, (5, 512)) / 4 + 8192.0).astype(np.float32)  # exact
    out, one = np.zeros(x.shape, np.float32), np.ones(512, np.float32)
    _core.layer_norm(device, x, None, one, None, EPS, out)
    exact = x.astype(np.float64)
    want = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(exact.var(axis=1, keepdims=True) + EPS)
    np.testing.assert_allclose(out, want, atol=2e-3)  # the mean itself is rounded


@pytest.mark.parametrize("hidden", [768, 4096])
def test_a_row_far_from_zero_is_as_near_to_float64_as_its_mean(
    device: _core.CpuDevice, rng: np.random.Generator, hidden: int
) -> None:
    """Sums of this size have units of 0.06 and more: one running sum alone would be off by many times as much."""
    x, one = random_floats(rng, 20, hidden) + np.float32(1000.0), np.ones(hidden, np.float32)
    out = np.zeros(x.shape, np.float32)
    _core.layer_norm(device, x, None, one, None, EPS, out)
    exact = x.astype(np.float64)
    want = (exact - exact.mean(axis=1, keepdims=True)) / np.sqrt(exact.var(axis=1, keepdims=True) + EPS)
    np.testing.assert_allclose(out, want, atol=1e-4)  # a float32 near 1000 has units of 6e-5


def test_infinities_equal_numbers_and_squares_that_overflow(device: _core.CpuDevice, dtype: Dtype) -> None:
    """What is infinite has no mean; a variance that is infinite leaves zeros, and the bias."""
    x = np.zeros((4, 20), np.float32)
    x[0, 17] = np.inf
    x[1, [3, 17]] = 1e25, -1e25
    x[2] = -1e30
    x[3] = -0.0
    out = np.zeros(x.shape, np.uint16 if dtype == "bfloat16" else np.float32)
    one = np.ones(20, np.float32)
    _core.layer_norm(device, x, None, one, one * 3, EPS, out)
    got = values_of(out)
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1:], np.full((3, 20), 3.0))


def test_bad_arguments_are_named(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    x, one = random_floats(rng, 2, 8), np.ones(8, np.float32)
    out = np.zeros((2, 8), np.uint16)
    with pytest.raises(ValueError, match=r"layer_norm: bias must be float32 \[H=8\], got float32 \[9\]"):
        _core.layer_norm(device, x, None, one, np.ones(9, np.float32), EPS, out)
    with pytest.raises(ValueError, match=r"layer_norm: out must be bfloat16 or float32 \[T=2, H=8\], got bfloat16 \[1"):
        _core.layer_norm(device, x, None, one, None, EPS, out[:1])
    with pytest.raises(ValueError, match="layer_norm: eps must be finite and >= 0, got nan"):
        _core.layer_norm(device, x, None, one, None, np.nan, out)
