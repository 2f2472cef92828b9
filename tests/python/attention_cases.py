"""What the attention tests share: sequences in either activation dtype, paged caches, and attention in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from kv_codes import CodeDtype, code_bytes, quantized, read_back
from kv_layout import tiled
from op_arrays import Array, Doubles, Dtype, assert_bfloat16_close, nan_like, random_array, to_bfloat16, values_of

from fastpaged import _core


@dataclass(frozen=True)
class Rule:
    """What is done to the score of a key. 0: no window, no cap."""

    window: int = 0
    soft_cap: float = 0.0
    alibi: bool = False

    def slopes(self, num_heads: int) -> npt.NDArray[np.float32] | None:
        return (2.0 ** -(1.0 + np.arange(num_heads) % 8)).astype(np.float32) if self.alibi else None


NO_RULE = Rule()


@dataclass(frozen=True)
class Sequence:
    """The q, k and v of every position: [L, heads, D]."""

    q: Array
    k: Array
    v: Array

    @property
    def length(self) -> int:
        return len(self.q)


@dataclass(frozen=True)
class Chunk:
    """Queries [begin, end) of a sequence; only the keys that they see are in the cache."""

    sequence: Sequence
    begin: int
    end: int


def random_sequence(
    rng: np.random.Generator,
    dtype: Dtype,
    length: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    loudness: float = 1.0,
) -> Sequence:
    """loudness: a factor of q and k."""

    def array(heads: int, scale: float) -> Array:
        return random_array(rng, dtype, length, heads, head_dim, scale=scale)

    return Sequence(array(num_heads, 2.0 * loudness), array(num_kv_heads, 2.0 * loudness), array(num_kv_heads, 1.0))


def kept_in(dtype: CodeDtype, sequence: Sequence) -> Sequence:
    """The sequence whose k and v are what 8-bit codes make of them."""

    def kept(x: Array) -> Array:
        if x.dtype == np.uint16:
            return to_bfloat16(read_back(values_of(x), dtype, "bfloat16"))
        return read_back(x, dtype, "float32")

    return Sequence(sequence.q, kept(sequence.k), kept(sequence.v))


def attend(
    device: _core.CpuDevice,
    chunks: list[Chunk],
    block_size: int,
    rule: Rule = NO_RULE,
    seed: int = 0,
    kv_cache_dtype: CodeDtype | None = None,
) -> list[Array]:
    """One call for all chunks. Blocks are dealt at random; every slot that no query sees, and a layer, hold NaN.
    kv_cache_dtype: of the cache, if it is of 8 bits."""
    num_kv_heads, head_dim = chunks[0].sequence.k.shape[1:]
    counts = [-(-chunk.end // block_size) for chunk in chunks]
    num_blocks = sum(counts) + 3
    cache = nan_like(chunks[0].sequence.k, (num_blocks, 2, 2, num_kv_heads, block_size, head_dim))
    free = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
    tables = np.full((len(chunks), max(counts) + 1), -1, np.int32)
    for i, chunk in enumerate(chunks):
        blocks, free = free[: counts[i]], free[counts[i] :]
        tables[i, : counts[i]] = blocks
        positions = np.arange(max(0, chunk.begin - rule.window + 1) if rule.window else 0, chunk.end)
        block, offset = blocks[positions // block_size], positions % block_size
        cache[block, 1, 0, :, offset] = chunk.sequence.k[positions]
        cache[block, 1, 1, :, offset] = chunk.sequence.v[positions]
    q = np.concatenate([chunk.sequence.q[chunk.begin : chunk.end] for chunk in chunks])
    query_start = np.cumsum([0] + [chunk.end - chunk.begin for chunk in chunks]).astype(np.int32)
    context_lens = np.array([chunk.end for chunk in chunks], np.int32)
    out = np.zeros((q.shape[0], q.shape[1] * head_dim), q.dtype)
    _core.paged_attention(
        device,
        q,
        _memory(cache, kv_cache_dtype)[:, 1],
        query_start,
        context_lens,
        tables,
        out,
        head_dim**-0.5,
        soft_cap=rule.soft_cap,
        alibi_slopes=rule.slopes(q.shape[1]),
        window=rule.window,
        kv_cache_dtype=kv_cache_dtype or "auto",
    )
    return np.split(out, query_start[1:-1])


def _memory(cache: Array, kv_cache_dtype: CodeDtype | None) -> Array:
    """As kernels have it. Codes of NaN have scales of NaN."""
    if kv_cache_dtype is None:
        return tiled(cache)
    values = values_of(cache).astype(np.float32)
    codes, scales = quantized(np.nan_to_num(values), kv_cache_dtype)
    scales[np.isnan(values).any(axis=-1)] = np.nan
    return code_bytes(codes, scales, "bfloat16" if cache.dtype == np.uint16 else "float32")


def softmax_attention(chunk: Chunk, rule: Rule = NO_RULE) -> Doubles:
    sequence = chunk.sequence
    q = values_of(sequence.q[chunk.begin : chunk.end])
    group = sequence.q.shape[1] // sequence.k.shape[1]
    k = np.repeat(values_of(sequence.k[: chunk.end]), group, axis=1)
    v = np.repeat(values_of(sequence.v[: chunk.end]), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) * q.shape[2] ** -0.5
    if rule.soft_cap:
        scores = rule.soft_cap * np.tanh(scores / rule.soft_cap)
    distance = np.arange(chunk.end)[None, :] - np.arange(chunk.begin, chunk.end)[:, None]
    slopes = rule.slopes(q.shape[1])
    if slopes is not None:
        scores += slopes[:, None, None].astype(np.float64) * distance
    scores[:, (distance > 0) | (distance <= -rule.window if rule.window else False)] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    mixed: Doubles = np.einsum("hqk,khd->qhd", weights, v, optimize=True)
    return mixed.reshape(chunk.end - chunk.begin, -1)


def assert_close(got: Array, want: Doubles, slack: float = 1e-4) -> None:
    """slack: the error that sums in float32 may leave. With bfloat16 weights are rounded too, by 1/512 of each at most:
    values of up to 4 are off by up to 1/128 on either side of the division, were all rounded the same way."""
    if got.dtype == np.uint16:
        assert_bfloat16_close(got, want, slack + 2.0**-7)
    else:
        error = np.abs(got - want)
        assert (error <= slack).all(), f"off by up to {error.max():.3g}, more than {slack}"
