"""NumpyOps: the op set in float64, as plainly as it can be said. What the kernels should have computed."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from kv_codes import CodeDtype, read_back
from models.step_arrays import StepArrays
from op_arrays import Dtype, to_bfloat16, to_float

from fastpaged.ops.op_set import ActivationKind, HeadNorm, Precision

Array = npt.NDArray[np.float64]


def rounded(x: npt.NDArray[Any], dtype: Dtype) -> Array:
    """To the nearest value of an activation dtype; NaN stays NaN."""
    floats = np.asarray(x, np.float32)
    if dtype == "bfloat16":
        floats = np.where(np.isnan(floats), np.float32(np.nan), to_float(to_bfloat16(np.nan_to_num(floats))))
    return floats.astype(np.float64)


class NumpyOps:
    """Rounds to the activation dtype where an op hands it on; every sum is in float64.

    kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]; kv_cache_dtype: of 8 bits, through which
    K and V go on their way into it.
    """

    def __init__(
        self, step: StepArrays, kv_cache: Array, dtype: Dtype, kv_cache_dtype: CodeDtype | None = None
    ) -> None:
        self._step = step
        self._kv_cache = kv_cache
        self._dtype = dtype
        self._kv_cache_dtype = kv_cache_dtype

    def embedding(
        self,
        token_ids: Literal["token_ids"],
        table: Array,
        *,
        position_table: Array | None = None,
        scale: float = 1.0,
    ) -> Array:
        rows = table[self._step.token_ids] * float(np.float32(scale))
        return rows if position_table is None else rows + position_table[self._step.positions]

    def rms_norm(self, x: Array, weight: Array, eps: float, *, dtype: Precision = "activation") -> Array:
        return self._out(normalized(x, weight, eps), dtype)

    def layer_norm(
        self, x: Array, weight: Array, bias: Array | None, eps: float, *, dtype: Precision = "activation"
    ) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        return self._out(normalized(centred, weight, eps) + (0.0 if bias is None else bias), dtype)

    def linear(
        self, x: Array, weight: Array, bias: Array | None = None, activation: ActivationKind | None = None
    ) -> Array:
        y = x @ weight.T + (0.0 if bias is None else bias)
        return y if activation is None else rounded(activated(y, activation), self._dtype)

    def gated_linear(self, x: Array, weight: Array, bias: Array | None, kind: ActivationKind) -> Array:
        gate, up = np.split(self.linear(x, weight, bias), 2, axis=1)
        return rounded(activated(gate, kind) * up, self._dtype)

    def attention(
        self,
        qkv: Array,
        layer: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        rope: Array | None = None,
        head_norm: HeadNorm | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        alibi_slopes: Array | None = None,
    ) -> Array:
        heads = qkv.reshape(len(qkv), -1, head_dim)
        q, k, v = np.split(heads, [num_heads, num_heads + num_kv_heads], axis=1)
        if head_norm is not None:
            q = normalized(q, head_norm.query, head_norm.eps)
            k = normalized(k, head_norm.key, head_norm.eps)
        if rope is not None:
            q, k = rotated(q, rope[self._step.positions]), rotated(k, rope[self._step.positions])
        cache = self._kv_cache[:, layer]
        block, offset = np.divmod(self._step.slot_mapping, cache.shape[3])
        cache[block, 0, :, offset] = self._kept(k)
        cache[block, 1, :, offset] = self._kept(v)
        out = np.empty_like(q)
        starts = self._step.query_start
        for s, length in enumerate(self._step.context_lens):
            at = np.arange(length)
            blocks, offsets = self._step.block_tables[s][at // cache.shape[3]], at % cache.shape[3]
            keys = cache[blocks, 0, :, offsets].repeat(num_heads // num_kv_heads, axis=1)
            values = cache[blocks, 1, :, offsets].repeat(num_heads // num_kv_heads, axis=1)
            rows = slice(starts[s], starts[s + 1])
            scores = np.einsum("qhd,khd->hqk", rounded(q[rows], self._dtype), keys) * float(np.float32(scale))
            if soft_cap:
                scores = soft_cap * np.tanh(scores / soft_cap)
            distance = at[None, :] - self._step.positions[rows][:, None]
            if alibi_slopes is not None:
                scores = scores + alibi_slopes[:, None, None] * distance
            seen = (distance <= 0) & ((distance > -window) if window else True)
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[rows] = np.einsum("hqk,khd->qhd", weights, values)
        return rounded(out.reshape(len(qkv), -1), self._dtype)

    def soft_cap(self, x: Array, cap: float) -> Array:
        return cap * np.tanh(x / cap)

    def add(self, x: Array, y: Array) -> Array:
        return x + y

    def all_reduce(self, y: Array, *, add: Array | None = None) -> Array:
        return y if add is None else add + y

    def rows(self, x: Array, sample_rows: Literal["sample_rows"]) -> Array:
        return x[self._step.sample_rows]

    def _kept(self, x: Array) -> Array:
        if self._kv_cache_dtype is None:
            return rounded(x, self._dtype)
        return read_back(x, self._kv_cache_dtype, self._dtype).astype(np.float64)

    def _out(self, x: Array, precision: Precision) -> Array:
        return x if precision == "float32" else rounded(x, self._dtype)


def normalized(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotated(x: Array, cos_sin: Array) -> Array:
    """x: [tokens, heads, head_dim]; cos_sin: [tokens, rotary]."""
    rotary = cos_sin.shape[1]
    cos, sin = np.split(cos_sin[:, None], 2, axis=2)
    low, high = np.split(x[..., :rotary], 2, axis=2)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, x[..., rotary:]], axis=2)


def activated(x: Array, kind: ActivationKind) -> Array:
    with np.errstate(over="ignore"):  # e^-x of large negative x is infinite, its inverse 0 as it should be
        if kind == "silu":
            return x / (1.0 + np.exp(-x))
        if kind == "gelu":
            return x / 2 * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))
        if kind == "gelu_tanh":
            return x / 2 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        return np.maximum(x, 0.0)
