"""The activations at the end of a linear layer, whose bias alone is their argument."""

from __future__ import annotations

import math

import numpy as np
import pytest
from op_arrays import Array, Dtype, Floats, assert_close, values_of
from op_cases.numpy_ops import activated

from fastpaged import _core
from fastpaged.ops.op_set import ActivationKind

KINDS: tuple[ActivationKind, ...] = ("silu", "gelu", "gelu_tanh", "relu")


def run(device: _core.CpuDevice, x: Floats, kind: str, dtype: Dtype = "float32") -> Array:
    """x: [outputs], as the biases of a weight of zeros."""
    weight = _core.PackedLinear(device, [np.zeros((len(x), 1), np.float32)], dtype)
    zero: Array = np.zeros((1, 1), np.uint16 if dtype == "bfloat16" else np.float32)
    out = np.full((1, len(x)), 7, zero.dtype)
    _core.linear(device, zero, weight, out, x, kind)
    return out[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_size_of_argument_is_served(device: _core.CpuDevice, dtype: Dtype, kind: ActivationKind) -> None:
    grid = np.concatenate(
        [np.linspace(-12.0, 12.0, 4001), np.geomspace(1e-20, 1e4, 500), -np.geomspace(1e-20, 1e4, 500)]
    )
    x = grid.astype(np.float32)
    assert_close(run(device, x, kind, dtype), activated(x.astype(np.float64), kind), slack=1e-6)


def test_the_two_gelus_are_not_one(device: _core.CpuDevice) -> None:
    x = np.array([-2.0, 2.0], np.float32)
    exact = [value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in (-2.0, 2.0)]
    np.testing.assert_allclose(run(device, x, "gelu"), exact, atol=1e-6)
    assert (np.abs(run(device, x, "gelu_tanh") - exact) > 5e-5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_nan_and_the_ends_saturate(device: _core.CpuDevice, dtype: Dtype, kind: str) -> None:
    got = values_of(run(device, np.array([np.nan, -1e30, -200.0, 1e30, 0.0], np.float32), kind, dtype))
    assert np.isnan(got[0])
    assert np.abs(got[[1, 2, 4]]).max() < 1e-8
    np.testing.assert_allclose(got[3], 1e30, rtol=2.0**-8)


@pytest.mark.parametrize("kind", KINDS)
def test_infinities_zeros_and_what_overflows_on_the_way_are_as_the_formula_has_them(
    device: _core.CpuDevice, dtype: Dtype, kind: ActivationKind
) -> None:
    """Where it says infinity times zero, NaN. The largest float32 is infinite in bfloat16."""
    largest = np.finfo(np.float32).max
    x = np.array([np.inf, -np.inf, 0.0, largest, -largest, 1e13, -1e13, 88.8, -88.8, -104.0], np.float32)
    with np.errstate(invalid="ignore"):
        want = activated(x.astype(np.float64), kind)
    got = values_of(run(device, np.tile(x, 3), kind, dtype)).reshape(3, -1)  # at other lanes
    for row in got:
        assert not np.signbit(row[2])
        if dtype == "bfloat16":
            assert row[3] == np.inf
            row[3] = want[3]
        np.testing.assert_allclose(row, want, rtol=1e-6 if dtype == "float32" else 2.0**-8, atol=1e-30)


def test_an_activation_nobody_knows_is_refused_by_name(device: _core.CpuDevice) -> None:
    with pytest.raises(ValueError, match="activation must be one of 'silu', 'gelu', 'gelu_tanh', 'relu', got 'tanh'"):
        run(device, np.zeros(4, np.float32), "tanh")
