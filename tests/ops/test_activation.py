from __future__ import annotations

import math

import numpy as np
import pytest
from op_arrays import Array, Dtype, Floats, assert_close, assert_same_bits, random_floats, values_of
from op_cases.numpy_ops import activated

from fastpaged import _core
from fastpaged.ops.op_set import ActivationKind

KINDS: tuple[ActivationKind, ...] = ("silu", "gelu", "gelu_tanh", "relu")


def run(device: _core.CpuDevice, x: Floats, kind: str, dtype: Dtype = "float32") -> Array:
    out = np.zeros(x.shape, np.uint16 if dtype == "bfloat16" else np.float32)
    _core.activation(device, x, kind, out)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_every_size_of_argument_is_served(device: _core.CpuDevice, dtype: Dtype, kind: ActivationKind) -> None:
    grid = np.concatenate(
        [np.linspace(-12.0, 12.0, 4001), np.geomspace(1e-20, 1e4, 500), -np.geomspace(1e-20, 1e4, 500)]
    )
    x = grid.astype(np.float32).reshape(3, -1)
    assert_close(run(device, x, kind, dtype), activated(x.astype(np.float64), kind), slack=1e-6)


def test_the_two_gelus_are_not_one(device: _core.CpuDevice) -> None:
    x = np.array([[-2.0, 2.0]], np.float32)
    exact = [value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in (-2.0, 2.0)]
    np.testing.assert_allclose(run(device, x, "gelu")[0], exact, atol=1e-6)
    assert (np.abs(run(device, x, "gelu_tanh")[0] - exact) > 5e-5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_nan_and_the_ends_saturate(device: _core.CpuDevice, dtype: Dtype, kind: str) -> None:
    got = values_of(run(device, np.array([[np.nan, -1e30, -200.0, 1e30, 0.0]], np.float32), kind, dtype))[0]
    assert np.isnan(got[0])
    assert np.abs(got[[1, 2, 4]]).max() < 1e-8
    np.testing.assert_allclose(got[3], 1e30, rtol=2.0**-8)


@pytest.mark.parametrize("kind", KINDS)
def test_infinities_zeros_and_what_overflows_on_the_way_are_as_the_formula_has_them(
    device: _core.CpuDevice, dtype: Dtype, kind: ActivationKind
) -> None:
    """Where it says infinity times zero, NaN. The largest float32 is infinite in bfloat16."""
    largest = np.finfo(np.float32).max
    x = np.array([[np.inf, -np.inf, 0.0, -0.0, largest, -largest, 1e13, -1e13, 88.8, -88.8, -104.0]], np.float32)
    with np.errstate(invalid="ignore"):
        want = activated(x[0].astype(np.float64), kind)
    got = values_of(run(device, np.tile(x, 3), kind, dtype)).reshape(3, -1)  # at other lanes
    for row in got:
        np.testing.assert_array_equal(np.signbit(row[2:4]), [False, True])
        if dtype == "bfloat16":
            assert row[4] == np.inf
            row[4] = want[4]
        np.testing.assert_allclose(row, want, rtol=1e-6 if dtype == "float32" else 2.0**-8, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, kind: str
) -> None:
    x = random_floats(rng, 70, 310, scale=3.0)
    together = run(device, x, kind, dtype)
    assert_same_bits(run(one_thread, x, kind, dtype), together)
    for row in range(0, 70, 9):
        assert_same_bits(run(device, x[row : row + 1], kind, dtype), together[row : row + 1])


def test_bad_arguments_are_named(device: _core.CpuDevice) -> None:
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match="activation must be one of 'silu', 'gelu', 'gelu_tanh', 'relu', got 'tanh'"):
        run(device, x, "tanh")
    with pytest.raises(ValueError, match=r"activation: out must be bfloat16 or float32 \[T=1, F=4\], got float32"):
        _core.activation(device, x, "relu", np.zeros((1, 5), np.float32))
