from __future__ import annotations

import numpy as np
import pytest
from op_arrays import Array, Dtype, Floats, assert_close, assert_same_bits, random_floats, values_of

from fastpaged import _core

EPS = 1e-5


def run(device: _core.CpuDevice, x: Floats, residual: Floats | None, weight: Floats, dtype: Dtype) -> Array:
    out = np.zeros(x.shape, np.uint16 if dtype == "bfloat16" else np.float32)
    _core.rms_norm(device, x, residual, weight, EPS, out)
    return out


@pytest.mark.parametrize("hidden", [1, 15, 16, 64, 65, 100, 576, 2048])
@pytest.mark.parametrize("adds", [False, True])
def test_rms_norm_divides_by_the_root_of_the_mean_square(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, hidden: int, adds: bool
) -> None:
    x = random_floats(rng, 37, hidden, scale=3.0)
    residual = random_floats(rng, 37, hidden) if adds else None
    weight = random_floats(rng, hidden)
    total = x + residual if residual is not None else x.copy()
    got = run(device, x, residual, weight, dtype)
    assert_same_bits(x, total)  # the sum stays in x; without a residual x is untouched
    exact = total.astype(np.float64)
    want = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + EPS) * weight
    assert_close(got, want, slack=1e-5)


def test_infinities_zeros_and_squares_that_overflow(device: _core.CpuDevice, dtype: Dtype) -> None:
    """A mean square that is infinite leaves zeros, and NaN of what is infinite itself."""
    x = np.zeros((5, 20), np.float32)
    x[0, [3, 17]] = 1.0, -np.inf
    x[1, [3, 17]] = 1e20, -1e30
    x[2, [3, 17]] = 3e18, -1e19
    x[3] = -0.0
    x[4, 17] = np.nan
    got = values_of(run(device, x, None, np.ones(20, np.float32), dtype))
    assert np.flatnonzero(np.isnan(got[0])).tolist() == [17] and np.nansum(np.abs(got[0])) == 0
    assert not got[1].any()
    np.testing.assert_allclose(got[2], x[2] / np.sqrt(np.mean(x[2].astype(np.float64) ** 2)), rtol=2.0**-8)
    assert not got[3].any() and np.signbit(got[3]).all()
    assert np.isnan(got[4]).all()


def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    x = random_floats(rng, 100, 580)
    residual = random_floats(rng, 100, 580)
    weight = random_floats(rng, 580)
    together = run(device, x.copy(), residual, weight, dtype)
    assert_same_bits(run(one_thread, x.copy(), residual, weight, dtype), together)
    for row in range(100):
        assert_same_bits(
            run(device, x[row : row + 1].copy(), residual[row : row + 1], weight, dtype), together[row : row + 1]
        )
    poisoned = x.copy()
    poisoned[1::2] = np.nan
    assert_same_bits(run(device, poisoned, residual, weight, dtype)[::2], together[::2])


def test_bad_arguments_are_named(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    x = random_floats(rng, 2, 8)
    out = np.zeros((2, 8), np.uint16)
    with pytest.raises(ValueError, match=r"rms_norm: weight must be float32 \[H=8\], got float32 \[9\]"):
        _core.rms_norm(device, x, None, np.ones(9, np.float32), EPS, out)
    with pytest.raises(ValueError, match=r"rms_norm: residual must be float32 \[T=2, H=8\]"):
        _core.rms_norm(device, x, x[:1].copy(), np.ones(8, np.float32), EPS, out)
    with pytest.raises(ValueError, match="rms_norm: eps must be finite and >= 0, got -1"):
        _core.rms_norm(device, x, None, np.ones(8, np.float32), -1.0, out)
    with pytest.raises(ValueError, match="residual must be an array of float32"):
        _core.rms_norm(device, x, out, np.ones(8, np.float32), EPS, out)  # type: ignore[arg-type]
