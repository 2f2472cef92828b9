"""What 8-bit codes and their scales make of keys and values, plainly in torch."""

from __future__ import annotations

import torch

# By kv_cache_dtype: what the largest code is worth.
LARGEST_CODES: dict[str, float] = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
_FP8: dict[str, torch.dtype] = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_LEAST, _MOST = 2.0**-100, 2.0**127
_SEVENTHS = (7, 6, 5, 4)  # of fp8's largest code: what the largest number of a vector may become


def through_codes(x: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """x: float32 [..., head_dim], each vector with a scale of its own. float32: value of the nearest code times scale.

    Vectors of which no number is as large as 2^-100 become zeros; those with NaN or infinity become NaN.
    """
    amax = x.abs().amax(dim=-1, keepdim=True)
    scale = _scale(x, amax.clamp(max=_MOST), kv_cache_dtype)
    kept = torch.where(amax < _LEAST, 0.0, _values(x / scale, kv_cache_dtype) * scale)
    return torch.where(x.isfinite().all(dim=-1, keepdim=True), kept, torch.nan)


def _values(units: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """Of the nearest codes."""
    largest = LARGEST_CODES[kv_cache_dtype]
    cut = units.clamp(-largest, largest)
    fp8 = _FP8.get(kv_cache_dtype)
    return cut.round() if fp8 is None else cut.to(fp8).float()


def _scale(x: torch.Tensor, amax: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """[..., 1]: of fp8 that of the least squared error, the first of equals."""
    scale = amax / LARGEST_CODES[kv_cache_dtype]
    if kv_cache_dtype not in _FP8:
        return scale
    least = torch.full_like(scale, torch.inf)
    for sevenths in _SEVENTHS:
        choice = amax / (LARGEST_CODES[kv_cache_dtype] / 7.0 * sevenths)
        units = x / choice
        off = _values(units, kv_cache_dtype) - units
        error = off.square().sum(dim=-1, keepdim=True) * (7.0 / sevenths) ** 2
        scale = torch.where(error < least, choice, scale)
        least = torch.minimum(error, least)
    return scale
