"""Packed weights as bytes, and back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from isas import EVERY_ISA

from fastpaged import _core


@pytest.fixture
def device() -> _core.CpuDevice:
    return _core.CpuDevice("scalar", 1)


def aligned(data: bytes, shift: int = 0) -> npt.NDArray[np.uint8]:
    """A copy at an address that is a multiple of 64, and `shift` bytes behind it."""
    room = np.zeros(len(data) + 128, np.uint8)
    begin = -room.ctypes.data % 64 + shift
    room[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
    return room[begin : begin + len(data)]


@pytest.mark.parametrize("gated", [False, True])
def test_bytes_of_a_packed_weight_make_the_same_weight(device: _core.CpuDevice, gated: bool) -> None:
    rng = np.random.default_rng(2)
    weight = _core.PackedLinear(device, [rng.standard_normal((34, 40), np.float32)], "float32", gated)
    view = memoryview(weight)
    assert (view.nbytes, view.readonly, view.format) == (weight.num_bytes, True, "B")
    sizes: dict[str, Any] = {"out_features": 34, "in_features": 40, "dtype": "float32", "gated": gated}
    again = _core.PackedLinear.from_packed(device, aligned(bytes(view)), **sizes)
    assert bytes(memoryview(again)) == bytes(view)
    assert {name: getattr(again, name) for name in sizes} == sizes


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_packed_bytes_are_those_of_the_packed_weight(isa: str) -> None:
    device = _core.CpuDevice(isa, 1)
    for out_features, in_features in itertools.product((1, 2, 5, 16, 30, 32, 34, 96), (1, 2, 16, 31, 32, 33, 70)):
        for dtype, gated in itertools.product(("bfloat16", "float32"), (False, True)):
            if gated and out_features % 2 != 0:
                continue
            part = np.zeros((out_features, in_features), np.float32)
            num_bytes = _core.PackedLinear(device, [part], dtype, gated).num_bytes
            sizes: dict[str, Any] = {"out_features": out_features, "in_features": in_features}
            assert _core.packed_bytes(device, dtype=dtype, gated=gated, **sizes) == num_bytes, sizes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": aligned(bytes(4 * 34 * 40))}, "data must have the 7680 bytes of the packed weight, got 5440"),
        ({"data": aligned(bytes(4 * 48 * 40 - 1))}, "data must have the 7680 bytes"),
        ({"data": aligned(bytes(4 * 48 * 40 + 1))}, "data must have the 7680 bytes"),
        ({"gated": True}, "data must have the 10240 bytes"),
        ({"gated": True, "out_features": 33}, "out_features of a gated weight must be even"),
        ({"data": aligned(bytes(4 * 48 * 40), shift=4)}, "data must lie at an address that is a multiple of 64"),
        ({"data": np.zeros(2000, np.float32)}, "data must be a contiguous array of uint8"),
        ({"out_features": 0}, "out_features and in_features must lie in"),
        ({"in_features": 2**31}, "out_features and in_features must lie in"),
        ({"dtype": "float16"}, "dtype must be"),
    ],
)
def test_what_cannot_be_a_packed_weight_is_refused(
    device: _core.CpuDevice, change: dict[str, Any], message: str
) -> None:
    values: dict[str, Any] = {
        "data": aligned(bytes(4 * 48 * 40)), "out_features": 34, "in_features": 40, "dtype": "float32", "gated": False,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        _core.PackedLinear.from_packed(device, **(values | change))
