from __future__ import annotations

import numpy as np
import pytest
from op_arrays import Array, Dtype, Floats, assert_close, assert_same_bits, random_floats, to_float
from op_cases.numpy_ops import activated

from fastpaged import _core
from fastpaged.ops.op_set import ActivationKind


def run(device: _core.CpuDevice, gate_up: Floats, kind: str = "silu", dtype: Dtype = "bfloat16") -> Array:
    out = np.zeros((gate_up.shape[0], gate_up.shape[1] // 2), np.uint16 if dtype == "bfloat16" else np.float32)
    _core.gated_activation(device, gate_up, kind, out)
    return out


@pytest.mark.parametrize("size", [1, 15, 16, 100, 1536])
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
def test_the_activation_of_the_gate_multiplies_up(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, kind: ActivationKind, size: int
) -> None:
    gate_up = random_floats(rng, 23, 2 * size, scale=5.0)
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    assert_close(run(device, gate_up, kind, dtype), activated(gate, kind) * up, slack=1e-5)


def test_silu_saturates_at_both_ends_and_keeps_nan(device: _core.CpuDevice) -> None:
    gates = [-1e30, -200.0, -90.0, -1e-30, 0.0, 90.0, 200.0, 1e30, np.nan]
    gate_up = np.array([gates + [1.0] * len(gates)], np.float32)
    got = to_float(run(device, gate_up))[0]
    assert np.abs(got[:5]).max() < 1e-8
    np.testing.assert_allclose(got[5:8], [90.0, 200.0, 1e30], rtol=2.0**-8)
    assert np.isnan(got[8])


def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, rng: np.random.Generator
) -> None:
    gate_up = random_floats(rng, 64, 2 * 310)
    together = run(device, gate_up)
    assert_same_bits(run(one_thread, gate_up), together)
    for row in range(64):
        assert_same_bits(run(device, gate_up[row : row + 1]), together[row : row + 1])


def test_bad_arguments_are_named(device: _core.CpuDevice) -> None:
    out = np.zeros((1, 4), np.uint16)
    with pytest.raises(ValueError, match="activation must be one of 'silu', 'gelu', 'gelu_tanh', 'relu', got 'swish'"):
        _core.gated_activation(device, np.zeros((1, 8), np.float32), "swish", out)
    with pytest.raises(
        ValueError, match=r"gated_activation: gate_up must be float32 \[T=1, 2 F=8\], got float32 \[1, 7\]"
    ):
        _core.gated_activation(device, np.zeros((1, 7), np.float32), "silu", out)
