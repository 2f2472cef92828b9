from __future__ import annotations

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
    to_float,
    values_of,
)

from fastpaged import _core

# (rows, outputs, inputs): SmolLM2's layers, then sizes that fit no tile.
SHAPES = [
    (1, 960, 576),
    (5, 576, 1536),
    (33, 3072, 576),
    (300, 48, 576),
    (1, 1, 1),
    (2, 17, 31),
    (7, 15, 33),
    (16, 16, 32),
    (17, 49, 63),
    (32, 80, 64),
    (47, 100, 2),
    (129, 33, 95),
]


def run(device: _core.CpuDevice, x: Array, weight: _core.PackedLinear) -> Floats:
    out = np.full((x.shape[0], weight.out_features), np.nan, np.float32)
    _core.linear(device, x, weight, out)
    return out


@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
def test_linear_is_x_times_the_transposed_weight(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, rows: int, outputs: int, inputs: int
) -> None:
    x = random_array(rng, dtype, rows, inputs)
    weight = random_array(rng, dtype, outputs, inputs, scale=0.1)
    packed = _core.PackedLinear(device, [weight], dtype)
    assert packed.dtype == dtype
    got = run(device, x, packed)
    want = values_of(x) @ values_of(weight).T
    # float32 sums: an error of at most (number of terms) * 2^-24 of the sum of magnitudes.
    magnitude = np.abs(values_of(x)) @ np.abs(values_of(weight)).T
    assert (np.abs(got - want) <= magnitude * (inputs + 2) * 2.0**-24).all()


def test_parts_are_stacked_along_the_outputs_and_float32_is_rounded_to_bfloat16(
    device: _core.CpuDevice, rng: np.random.Generator
) -> None:
    first = random_bfloat16(rng, 19, 40)
    second = random_floats(rng, 8, 40)
    third = random_bfloat16(rng, 5, 80)[:, ::2].copy()
    x = random_bfloat16(rng, 3, 40)
    stacked = np.concatenate([first, to_bfloat16(second), third])
    packed = _core.PackedLinear(device, [first, second, third])
    assert (packed.out_features, packed.in_features) == (32, 40)
    assert packed.num_bytes >= 32 * 40 * 2
    assert_same_bits(run(device, x, packed), run(device, x, _core.PackedLinear(device, [stacked])))


def test_parts_in_bfloat16_are_widened_to_float32(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    first, second = random_bfloat16(rng, 19, 41), random_floats(rng, 8, 41)
    x = random_floats(rng, 3, 41)
    packed = _core.PackedLinear(device, [first, second], "float32")
    stacked = _core.PackedLinear(device, [np.concatenate([to_float(first), second])], "float32")
    assert_same_bits(run(device, x, packed), run(device, x, stacked))


@pytest.mark.parametrize("outputs", [1, 16, 35, 50])
def test_the_bias_is_added_last(device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, outputs: int) -> None:
    x, bias = random_array(rng, dtype, 37, 33), random_floats(rng, outputs, scale=9.0)
    packed = _core.PackedLinear(device, [random_array(rng, dtype, outputs, 33)], dtype)
    out = np.full((37, outputs), np.nan, np.float32)
    _core.linear(device, x, packed, out, bias)
    assert_same_bits(out, run(device, x, packed) + bias)


@pytest.mark.parametrize(("outputs", "inputs"), [(70, 576), (16, 32), (35, 75), (3072, 96), (2056, 40)])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice,
    one_thread: _core.CpuDevice,
    rng: np.random.Generator,
    dtype: Dtype,
    outputs: int,
    inputs: int,
) -> None:
    x = random_array(rng, dtype, 270, inputs)
    weight = random_array(rng, dtype, outputs, inputs, scale=0.1)
    packed = _core.PackedLinear(device, [weight], dtype)
    together = run(device, x, packed)
    assert_same_bits(run(one_thread, x, _core.PackedLinear(one_thread, [weight], dtype)), together)
    for rows in (*range(1, 36), 57, 64, 120, 121, 127, 128, 129, 140, 141, 255, 257):
        start = int(rng.integers(0, x.shape[0] - rows + 1))
        assert_same_bits(run(device, x[start : start + rows], packed), together[start : start + rows])


def test_rows_of_nan_leave_their_neighbours_alone(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    x = random_array(rng, dtype, 40, 75)
    packed = _core.PackedLinear(device, [random_array(rng, dtype, 50, 75)], dtype)
    clean = run(device, x, packed)
    x[1::3] = nan_like(x, x[1::3].shape)
    x[2::3] = 0x7F80 if dtype == "bfloat16" else np.inf  # times zero it is NaN
    poisoned = run(device, x, packed)
    assert_same_bits(poisoned[::3], clean[::3])
    assert np.isnan(poisoned[1::3]).all()


def test_nothing_is_read_beside_a_row_and_nothing_written_beside_the_output(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    """Rows of x and out may lie in wider arrays."""
    x = random_array(rng, dtype, 21, 75)
    wide_x = nan_like(x, (21, 160))
    wide_x[:, 32:107] = x
    wide_out = np.full((21, 90), 7.0, np.float32)
    packed = _core.PackedLinear(device, [random_array(rng, dtype, 50, 75)], dtype)
    _core.linear(device, wide_x[:, 32:107], packed, wide_out[:, 20:70])
    assert_same_bits(wide_out[:, 20:70].copy(), run(device, wide_x[:, 32:107].copy(), packed))
    assert (wide_out[:, :20] == 7.0).all() and (wide_out[:, 70:] == 7.0).all()


def test_no_rows_are_no_work(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    packed = _core.PackedLinear(device, [random_bfloat16(rng, 8, 16)])
    assert run(device, np.zeros((0, 16), np.uint16), packed).shape == (0, 8)


def test_bad_arguments_are_named(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    packed = _core.PackedLinear(device, [random_bfloat16(rng, 8, 16)])
    x = random_bfloat16(rng, 2, 16)
    out = np.zeros((2, 8), np.float32)
    with pytest.raises(ValueError, match=r"linear: x must be bfloat16 \[M=2, K=16\], got bfloat16 \[2, 15\]"):
        _core.linear(device, x[:, :15].copy(), packed, out)
    with pytest.raises(ValueError, match=r"linear: out must be float32 \[M=2, N=8\], got float32 \[3, 8\]"):
        _core.linear(device, x, packed, np.zeros((3, 8), np.float32))
    with pytest.raises(ValueError, match=r"linear: x must be bfloat16 \[M, K=16\], got float32 \[2, 16\]"):
        _core.linear(device, x.astype(np.float32), packed, out)
    with pytest.raises(ValueError, match=r"linear: x must be float32 \[M, K=16\], got bfloat16 \[2, 16\]"):
        _core.linear(device, x, _core.PackedLinear(device, [random_bfloat16(rng, 8, 16)], "float32"), out)
    with pytest.raises(ValueError, match=r"linear: bias must be float32 \[N=8\], got float32 \[7\]"):
        _core.linear(device, x, packed, out, np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'bfloat16', got 'float16'"):
        _core.PackedLinear(device, [random_bfloat16(rng, 8, 16)], "float16")
    with pytest.raises(ValueError, match="linear: x must have contiguous rows"):
        _core.linear(device, random_bfloat16(rng, 2, 32)[:, ::2], packed, out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be a writable array, got a read-only"):
        _core.linear(device, x, packed, out)
    with pytest.raises(ValueError, match="parts must not be empty"):
        _core.PackedLinear(device, [])
    with pytest.raises(
        ValueError, match=r"parts\[1\] must be bfloat16 or float32 \[N=8, K=16\], got bfloat16 \[8, 17\]"
    ):
        _core.PackedLinear(device, [random_bfloat16(rng, 8, 16), random_bfloat16(rng, 8, 17)])


def test_a_weight_serves_only_the_table_it_was_packed_for(rng: np.random.Generator) -> None:
    devices = [_core.CpuDevice(isa, 1) for isa in _core.supported_isas()]
    weight = random_bfloat16(rng, 8, 16)
    for device in devices:
        packed = _core.PackedLinear(device, [weight])
        for other in devices:
            if other.isa != device.isa:
                with pytest.raises(ValueError, match=f"packed for '{other.isa}', got one packed for '{device.isa}'"):
                    run(other, random_bfloat16(rng, 1, 16), packed)
