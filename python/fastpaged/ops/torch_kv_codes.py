"""What 8-bit codes and their scales make of keys and values, plainly in torch."""

from __future__ import annotations

import torch

# By kv_cache_dtype: what the largest code is worth.
LARGEST_CODES: dict[str, float] = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
_FP8: dict[str, torch.dtype] = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_LEAST, _MOST = 2.0**-100, 2.0**127


def through_codes(x: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """x: float32 [..., head_dim], each vector with a scale of its own. float32: value of the nearest code times scale.

    Vectors of which no number is as large as 2^-100 become zeros; those with NaN or infinity become NaN.
    """
    largest = LARGEST_CODES[kv_cache_dtype]
    amax = x.abs().amax(dim=-1, keepdim=True)
    scale = amax.clamp(max=_MOST) / largest
    units = (x / scale).clamp(-largest, largest)
    fp8 = _FP8.get(kv_cache_dtype)
    values = units.round() if fp8 is None else units.to(fp8).float()
    kept = torch.where(amax < _LEAST, 0.0, values * scale)
    return torch.where(x.isfinite().all(dim=-1, keepdim=True), kept, torch.nan)
