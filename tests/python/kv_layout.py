"""The order in which kernels keep K and V: caches [..., 2 (K|V), num_kv_heads, block_size, head_dim] into it and back.

Said once more here, in numpy's words, so that tests hold the kernels to it.
"""

from __future__ import annotations

import numpy as np
from op_arrays import Array

TILE = 16


def tiled(cache: Array, *, in_pairs: bool | None = None) -> Array:
    """From [slot][element] order, a new array. in_pairs: as bfloat16 lies, which is the default for its bits."""
    return _reordered(cache, cache.dtype == np.uint16 if in_pairs is None else in_pairs, back=False)


def untiled(cache: Array) -> Array:
    """To [slot][element] order, a new array."""
    return _reordered(cache, cache.dtype == np.uint16, back=True)


def _reordered(cache: Array, in_pairs: bool, *, back: bool) -> Array:
    heads, block_size, head_dim = cache.shape[-3:]
    out = cache.copy()
    if block_size % TILE != 0:
        return out
    lead, tiles = (*cache.shape[:-4], heads), block_size // TILE
    k, v = out[..., 0, :, :, :], out[..., 1, :, :, :]
    if in_pairs:
        k[...] = _swapped(k, (*lead, tiles), TILE, head_dim // 2, (2,), back)
        v[...] = _swapped(v, (*lead, block_size // 2), 2, head_dim, (), back)
    else:
        k[...] = _swapped(k, (*lead, tiles), TILE, head_dim, (), back)
    return out


def _swapped(a: Array, lead: tuple[int, ...], slots: int, units: int, unit: tuple[int, ...], back: bool) -> Array:
    """[lead][slots][units][unit] <-> [lead][units][slots][unit], in the shape of a."""
    middle = (units, slots) if back else (slots, units)
    first = len(lead)
    return np.swapaxes(a.reshape(*lead, *middle, *unit), first, first + 1).reshape(a.shape)
