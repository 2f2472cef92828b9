"""The order in which kernels keep K and V: caches [..., 2 (K|V), num_kv_heads, block_size, head_dim] into it and back.

Said once more here, in numpy's words, so that tests hold the kernels to it.
"""

from __future__ import annotations

import numpy as np
from op_arrays import Array

TILE = 16


def tiled(cache: Array) -> Array:
    """From [slot][element] order, a new array."""
    block_size, head_dim = cache.shape[-2:]
    out = cache.copy()
    if block_size % TILE != 0:
        return out
    lead, tiles = cache.shape[:-4], block_size // TILE
    k, v = out[..., 0, :, :, :], out[..., 1, :, :, :]
    heads = cache.shape[-3]
    if cache.dtype == np.uint16:
        pairs = k.reshape(*lead, heads, tiles, TILE, head_dim // 2, 2)
        k[...] = np.swapaxes(pairs, -3, -2).reshape(k.shape)
        v[...] = np.swapaxes(v.reshape(*lead, heads, block_size // 2, 2, head_dim), -2, -1).reshape(v.shape)
    else:
        k[...] = np.swapaxes(k.reshape(*lead, heads, tiles, TILE, head_dim), -2, -1).reshape(k.shape)
    return out


def untiled(cache: Array) -> Array:
    """To [slot][element] order, a new array."""
    block_size, head_dim = cache.shape[-2:]
    out = cache.copy()
    if block_size % TILE != 0:
        return out
    lead, tiles = cache.shape[:-4], block_size // TILE
    k, v = out[..., 0, :, :, :], out[..., 1, :, :, :]
    heads = cache.shape[-3]
    if cache.dtype == np.uint16:
        pairs = k.reshape(*lead, heads, tiles, head_dim // 2, TILE, 2)
        k[...] = np.swapaxes(pairs, -3, -2).reshape(k.shape)
        v[...] = np.swapaxes(v.reshape(*lead, heads, block_size // 2, head_dim, 2), -2, -1).reshape(v.shape)
    else:
        k[...] = np.swapaxes(k.reshape(*lead, heads, tiles, head_dim, TILE), -2, -1).reshape(k.shape)
    return out
