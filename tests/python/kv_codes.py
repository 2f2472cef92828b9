"""8-bit KV, said once more in numpy's words, so that tests hold the kernels to it: which codes and scales a vector has,
what they are worth, and where they lie in memory."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from kv_layout import TILE, tiled
from op_arrays import Doubles, Dtype, Floats, to_bfloat16, to_float

CodeDtype = Literal["fp8_e4m3", "fp8_e5m2", "int8"]
Codes = npt.NDArray[np.uint8]

CODE_DTYPES: tuple[CodeDtype, ...] = ("fp8_e4m3", "fp8_e5m2", "int8")
SCALE_BYTES = 4
LARGEST: dict[CodeDtype, float] = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
# Bits of mantissa, and the exponent's bias.
FORMATS: dict[CodeDtype, tuple[int, int]] = {"fp8_e4m3": (3, 7), "fp8_e5m2": (2, 15)}


def magnitudes(dtype: CodeDtype) -> Doubles:
    """Of the codes 0, 1, ... up to the largest."""
    if dtype == "int8":
        return np.arange(128.0)
    bits, bias = FORMATS[dtype]
    exponent, mantissa = np.divmod(np.arange(128), 1 << bits)
    values = np.where(exponent == 0, mantissa, mantissa + (1 << bits)) * 2.0 ** (np.maximum(exponent, 1) - bias - bits)
    finite: Doubles = values[values <= LARGEST[dtype]]
    return finite


def quantized(x: Floats, dtype: CodeDtype) -> tuple[Codes, Floats]:
    """x: [..., D], finite and of ordinary size. Codes [..., D] and scales [...]."""
    amax = np.abs(x).max(axis=-1).astype(np.float32)
    if dtype == "int8":
        return _coded(x, amax / np.float32(LARGEST[dtype]), dtype)
    codes, scales = np.zeros(x.shape, np.uint8), np.zeros(x.shape[:-1], np.float32)
    least = np.full(scales.shape, np.inf, np.float32)
    for sevenths in (7, 6, 5, 4):  # of the largest code: what amax becomes
        tried, tried_scales = _coded(x, amax / np.float32(LARGEST[dtype] / 7 * sevenths), dtype)
        error = _squared_error(x, tried, tried_scales, dtype) * np.float32(np.float32(49.0) / np.float32(sevenths**2))
        is_better = error < least
        codes[is_better], scales[is_better], least[is_better] = (
            tried[is_better],
            tried_scales[is_better],
            error[is_better],
        )
    return codes, scales


def _coded(x: Floats, scales: Floats, dtype: CodeDtype) -> tuple[Codes, Floats]:
    """The nearest codes by these scales."""
    units = _in_units(x, scales)
    steps = magnitudes(dtype)
    middles = (steps[1:] + steps[:-1]) / 2.0
    wanted = np.abs(units).astype(np.float64)
    codes = np.searchsorted(middles, wanted)  # below a middle, or on it
    is_tie = (codes < len(middles)) & (wanted == middles[np.minimum(codes, len(middles) - 1)])
    codes += is_tie & (codes % 2 == 1)
    negative = np.signbit(units)
    signed = np.where(negative, 256 - codes, codes) % 256 if dtype == "int8" else codes + np.where(negative, 128, 0)
    return np.where(scales[..., None] == 0.0, 0, signed).astype(np.uint8), scales


def _in_units(x: Floats, scales: Floats) -> Floats:
    return (x / np.where(scales == 0.0, np.float32(1.0), scales)[..., None]).astype(np.float32)


def _squared_error(x: Floats, codes: Codes, scales: Floats, dtype: CodeDtype) -> Floats:
    """In units of codes, in float32: sixteen sums of numbers sixteen apart, then these in order. D % 16 == 0."""
    off = worth(codes, np.ones_like(scales), dtype, "float32") - _in_units(x, scales)
    sums = np.zeros((*off.shape[:-1], 16), np.float32)
    for first in range(0, off.shape[-1], 16):
        part = off[..., first : first + 16]
        sums += part * part
    total = np.zeros(off.shape[:-1], np.float32)
    for lane in range(16):
        total += sums[..., lane]
    return total


def worth(codes: Codes, scales: Floats, dtype: CodeDtype, activations: Dtype) -> Floats:
    """What is read: [..., D], numbers of the activation dtype."""
    if dtype == "int8":
        values = codes.view(np.int8).astype(np.float32)
    else:
        steps = magnitudes(dtype)
        values = np.where(codes >= 128, -1.0, 1.0).astype(np.float32) * steps[codes % 128].astype(np.float32)
    products: Floats = values * scales[..., None]
    return to_float(to_bfloat16(products)) if activations == "bfloat16" else products


def read_back(x: npt.NDArray[Any], dtype: CodeDtype, activations: Dtype) -> Floats:
    """What x becomes on its way through the cache."""
    return worth(*quantized(np.asarray(x, np.float32), dtype), dtype, activations)


def code_bytes(codes: Codes, scales: Floats, activations: Dtype) -> Codes:
    """Memory as kernels keep it: from codes [..., 2 (K|V), num_kv_heads, block_size, head_dim] and scales [..., 2,
    num_kv_heads, block_size] to [..., 2, num_kv_heads, block_size * (head_dim + 4)]."""
    block_size, head_dim = codes.shape[-2:]
    run = TILE if block_size % TILE == 0 else block_size
    lead = codes.shape[:-2]
    ordered = tiled(codes, in_pairs=activations == "bfloat16").reshape(*lead, block_size // run, run * head_dim)
    scale_bytes = np.ascontiguousarray(scales, np.float32).view(np.uint8)
    scale_bytes = scale_bytes.reshape(*lead, block_size // run, run * SCALE_BYTES)
    memory: Codes = np.concatenate([ordered, scale_bytes], axis=-1)
    return memory.reshape(*lead, block_size * (head_dim + SCALE_BYTES))


def no_codes(*shape: int) -> Codes:
    """Memory [..., block_size * (head_dim + 4)] for a cache of this shape [..., block_size, head_dim], full of ones:
    scales of NaN."""
    return np.full((*shape[:-2], shape[-2] * (shape[-1] + SCALE_BYTES)), 0xFF, np.uint8)
