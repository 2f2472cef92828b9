"""What the op tests share: bfloat16 in numpy, random arrays, comparisons."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]  # of either activation dtype
Dtype = Literal["bfloat16", "float32"]
Doubles = npt.NDArray[np.float64]

NAN_BITS = np.uint16(0x7FC0)


def to_bfloat16(values: npt.NDArray[Any]) -> Bits:
    """To the nearest, ties to even; bits in uint16. Finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    upper: Bits = (rounded >> np.uint32(16)).astype(np.uint16)
    return upper


def to_float(bits: Bits) -> Floats:
    floats: Floats = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return floats


def random_floats(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Floats:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def random_bfloat16(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Bits:
    return to_bfloat16(random_floats(rng, *shape, scale=scale))


def random_array(rng: np.random.Generator, dtype: Dtype, *shape: int, scale: float = 1.0) -> Array:
    """In an activation dtype."""
    floats = random_floats(rng, *shape, scale=scale)
    return to_bfloat16(floats) if dtype == "bfloat16" else floats


def values_of(array: Array) -> Doubles:
    return (to_float(array) if array.dtype == np.uint16 else array).astype(np.float64)


def nan_like(array: Array, shape: tuple[int, ...]) -> Array:
    """NaN throughout, in the dtype of `array`."""
    return np.full(shape, NAN_BITS if array.dtype == np.uint16 else np.nan, array.dtype)


def assert_same_bits(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    different = np.ascontiguousarray(got).view(np.uint8) != np.ascontiguousarray(want).view(np.uint8)
    assert not different.any(), f"{np.count_nonzero(got != want)} of {got.size} elements differ"


def assert_bfloat16_close(got: Bits, want: npt.NDArray[np.float64], slack: float) -> None:
    """Within half a unit of bfloat16's last place, plus slack: the error that float32 sums may leave."""
    error = np.abs(to_float(got).astype(np.float64) - want)
    allowed = np.abs(want) * 2.0**-8 + slack
    assert (error <= allowed).all(), f"off by up to {(error - allowed).max():.3g} more than allowed"


def assert_close(got: Array, want: Doubles, slack: float) -> None:
    """slack: the error that sums in float32 may leave."""
    if got.dtype == np.uint16:
        assert_bfloat16_close(got, want, slack)
    else:
        error = np.abs(got - want)
        assert (error <= slack + np.abs(want) * 2.0**-21).all(), f"off by up to {error.max():.3g}"
