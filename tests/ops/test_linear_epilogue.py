"""What a linear layer does with its sums: the bits are those of one op after the other, wherever the rows stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_arrays import (
    Array,
    Dtype,
    Floats,
    assert_same_bits,
    nan_like,
    random_array,
    random_bfloat16,
    random_floats,
    to_bfloat16,
    values_of,
)
from op_cases.numpy_ops import activated

from fastpaged import _core
from fastpaged.ops.op_set import ActivationKind

KINDS: tuple[ActivationKind, ...] = ("silu", "gelu", "gelu_tanh", "relu")
FEATURES = [1, 15, 16, 17, 32, 40, 100]  # of a gated weight: none, some and all of the last panels filled


def sums(device: _core.CpuDevice, x: Array, weight: Array, bias: Floats | None, dtype: Dtype) -> Floats:
    """Of a plain weight."""
    out = np.full((len(x), len(weight)), np.nan, np.float32)
    _core.linear(device, x, _core.PackedLinear(device, [weight], dtype), out, bias)
    return out


def activation_of(device: _core.CpuDevice, y: Floats, kind: str) -> Floats:
    """Element by element in float32, as the bias of a weight of zeros."""
    weight = _core.PackedLinear(device, [np.zeros((y.size, 1), np.float32)], "float32")
    out = np.full((1, y.size), np.nan, np.float32)
    _core.linear(device, np.zeros((1, 1), np.float32), weight, out, y.reshape(-1), kind)
    return out.reshape(y.shape)


def rounded(y: Floats, dtype: Dtype) -> Array:
    return y if dtype == "float32" else to_bfloat16(y)


def filled(dtype: Dtype, *shape: int) -> Array:
    return np.full(shape, 7, np.uint16 if dtype == "bfloat16" else np.float32)


def gated(
    device: _core.CpuDevice, x: Array, weight: _core.PackedLinear, bias: Floats | None, kind: str, dtype: Dtype
) -> Array:
    out = filled(dtype, len(x), weight.out_features // 2)
    _core.linear(device, x, weight, out, bias, kind)
    return out


@pytest.mark.parametrize("outputs", [1, 16, 35, 50])
@pytest.mark.parametrize("with_bias", [False, True])
def test_an_activation_is_that_of_the_sum_rounded_once(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, outputs: int, with_bias: bool
) -> None:
    x, weight = random_array(rng, dtype, 37, 33), random_array(rng, dtype, outputs, 33)
    bias = random_floats(rng, outputs, scale=3.0) if with_bias else None
    for kind in KINDS:
        out = filled(dtype, 37, outputs)
        _core.linear(device, x, _core.PackedLinear(device, [weight], dtype), out, bias, kind)
        assert_same_bits(out, rounded(activation_of(device, sums(device, x, weight, bias, dtype), kind), dtype))


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_activation_of_a_gate_multiplies_its_up(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, features: int, with_bias: bool
) -> None:
    x, weight = random_array(rng, dtype, 37, 33), random_array(rng, dtype, 2 * features, 33)
    bias = random_floats(rng, 2 * features, scale=3.0) if with_bias else None
    packed = _core.PackedLinear(device, [weight[:features], weight[features:]], dtype, gated=True)
    assert (packed.gated, packed.out_features, packed.in_features) == (True, 2 * features, 33)
    gate, up = np.split(sums(device, x, weight, bias, dtype), 2, axis=1)
    for kind in KINDS:
        got = gated(device, x, packed, bias, kind, dtype)
        assert_same_bits(got, rounded(activation_of(device, np.ascontiguousarray(gate), kind) * up, dtype))
        np.testing.assert_allclose(
            values_of(got),
            activated(gate.astype(np.float64), kind) * up,
            rtol=2.0**-8 if dtype == "bfloat16" else 2e-6,
            atol=1e-5,
        )


@pytest.mark.parametrize("outputs", [1, 16, 35, 50])
@pytest.mark.parametrize("with_bias", [False, True])
def test_what_is_added_is_the_sum_with_its_bias(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, outputs: int, with_bias: bool
) -> None:
    x, weight = random_array(rng, dtype, 37, 33), random_array(rng, dtype, outputs, 33)
    bias = random_floats(rng, outputs, scale=3.0) if with_bias else None
    stream = random_floats(rng, 37, outputs, scale=100.0)
    want = stream + sums(device, x, weight, bias, dtype)
    _core.linear(device, x, _core.PackedLinear(device, [weight], dtype), stream, bias, adds=True)
    assert_same_bits(stream, want)


def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    x, weight = random_array(rng, dtype, 270, 75), random_array(rng, dtype, 2 * 35, 75, scale=0.3)
    bias = random_floats(rng, 2 * 35)
    packed = _core.PackedLinear(device, [weight], dtype, gated=True)
    together = gated(device, x, packed, bias, "silu", dtype)
    alone = _core.PackedLinear(one_thread, [weight], dtype, gated=True)
    assert_same_bits(gated(one_thread, x, alone, bias, "silu", dtype), together)
    for rows in (*range(1, 36), 64, 127, 128, 129, 141, 255, 257):
        start = int(rng.integers(0, len(x) - rows + 1))
        assert_same_bits(
            gated(device, x[start : start + rows], packed, bias, "silu", dtype), together[start : start + rows]
        )


def test_rows_of_nan_leave_their_neighbours_alone(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    x = random_array(rng, dtype, 40, 75)
    packed = _core.PackedLinear(device, [random_array(rng, dtype, 50, 75)], dtype, gated=True)
    clean = gated(device, x, packed, None, "gelu", dtype)
    x[1::2] = nan_like(x, x[1::2].shape)
    poisoned = gated(device, x, packed, None, "gelu", dtype)
    assert_same_bits(poisoned[::2], clean[::2])
    assert np.isnan(values_of(poisoned[1::2])).all()


@pytest.mark.parametrize("form", ["activation", "gated", "adds"])
def test_nothing_is_written_beside_the_output(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, form: str
) -> None:
    """Rows of out may lie in a wider array."""
    x, weight = random_array(rng, dtype, 21, 40), random_array(rng, dtype, 50, 40)
    packed = _core.PackedLinear(device, [weight], dtype, gated=form == "gated")
    options: dict[str, Any] = {"adds": True} if form == "adds" else {"activation": "silu"}
    wide = filled("float32" if form == "adds" else dtype, 21, 90)
    dense = wide[:, 20 : 45 if form == "gated" else 70].copy()
    _core.linear(device, x, packed, dense, **options)
    _core.linear(device, x, packed, wide[:, 20 : 20 + dense.shape[1]], **options)
    assert_same_bits(wide[:, 20 : 20 + dense.shape[1]].copy(), dense)
    assert (wide[:, :20] == 7).all() and (wide[:, 20 + dense.shape[1] :] == 7).all()


def test_silu_saturates_at_both_ends_of_the_gate_and_keeps_nan(device: _core.CpuDevice) -> None:
    gates = [-1e30, -200.0, -90.0, -1e-30, 0.0, 90.0, 200.0, 1e30, np.nan]
    bias = np.array(gates + [1.0] * len(gates), np.float32)
    weight = _core.PackedLinear(device, [np.zeros((len(bias), 1), np.float32)], gated=True)
    got = values_of(gated(device, np.zeros((1, 1), np.uint16), weight, bias, "silu", "bfloat16"))[0]
    assert np.abs(got[:5]).max() < 1e-8
    np.testing.assert_allclose(got[5:8], [90.0, 200.0, 1e30], rtol=2.0**-8)
    assert np.isnan(got[8])


def test_bad_arguments_are_named(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    weight = random_bfloat16(rng, 8, 16)
    plain, both = _core.PackedLinear(device, [weight]), _core.PackedLinear(device, [weight], gated=True)
    x, out = random_bfloat16(rng, 2, 16), np.zeros((2, 4), np.uint16)
    with pytest.raises(ValueError, match="linear: activation must be given with a gated weight"):
        _core.linear(device, x, both, np.zeros((2, 8), np.float32))
    with pytest.raises(ValueError, match=r"linear: out must be bfloat16 \[M=2, N / 2=4\], got bfloat16 \[2, 8\]"):
        _core.linear(device, x, both, np.zeros((2, 8), np.uint16), activation="silu")
    with pytest.raises(ValueError, match=r"linear: out must be bfloat16 \[M=2, N=8\], got float32 \[2, 8\]"):
        _core.linear(device, x, plain, np.zeros((2, 8), np.float32), activation="silu")
    with pytest.raises(ValueError, match=r"linear: bias must be float32 \[N=8\], got float32 \[4\]"):
        _core.linear(device, x, both, out, np.zeros(4, np.float32), "silu")
    with pytest.raises(ValueError, match="linear: adds must be false with an activation"):
        _core.linear(device, x, plain, np.zeros((2, 8), np.uint16), activation="silu", adds=True)
    with pytest.raises(ValueError, match="parts must have as many gates as ups, .* got 7"):
        _core.PackedLinear(device, [weight[:7]], gated=True)
