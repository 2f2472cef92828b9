"""KernelOps: the op set carried out by one kernel after the other, of the op table that a device runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from models.step_arrays import StepArrays
from op_arrays import Dtype

from fastpaged import _core
from fastpaged.ops.op_set import ActivationKind, HeadNorm, Precision

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]  # float32, or bfloat16 bits


@dataclass(eq=False)
class Sum:
    """x + y: added up, in place, by the norm that reads it or before anything else does. y is None from then on."""

    x: Floats
    y: Floats | None


@dataclass(eq=False)
class Product:
    """What a linear computes, once it is read: added to something, it is written nowhere else."""

    x: Array
    weight: _core.PackedLinear
    bias: Floats | None
    value: Floats | None = None


class KernelOps:
    """Sums are added up where the recorded graph would: by linears and norms, in place.

    kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim] in the activation dtype, or of 8 bits:
    [num_blocks, num_layers, 2, num_kv_heads, block_size * (head_dim + 4)]
    """

    def __init__(
        self, device: _core.CpuDevice, step: StepArrays, kv_cache: Array, dtype: Dtype, kv_cache_dtype: str = "auto"
    ) -> None:
        self._device = device
        self._step = step
        self._kv_cache = kv_cache
        self._dtype = dtype
        self._kv_cache_dtype = kv_cache_dtype

    def embedding(
        self,
        token_ids: Literal["token_ids"],
        table: Array,
        *,
        position_table: Floats | None = None,
        scale: float = 1.0,
    ) -> Floats:
        step = self._step
        out = self._floats(len(step.token_ids), table.shape[1])
        positions = None if position_table is None else step.positions
        _core.embedding(self._device, step.token_ids, table, out, positions, position_table, scale)
        return out

    def rms_norm(
        self, x: Floats | Sum | Product, weight: Floats, eps: float, *, dtype: Precision = "activation"
    ) -> Array:
        base, residual = _parts(self._value(x) if isinstance(x, Product) else x)
        out = self._new(*base.shape, dtype=dtype)
        _core.rms_norm(self._device, base, residual, weight, eps, out)
        return out

    def layer_norm(
        self,
        x: Floats | Sum | Product,
        weight: Floats,
        bias: Floats | None,
        eps: float,
        *,
        dtype: Precision = "activation",
    ) -> Array:
        base, residual = _parts(self._value(x) if isinstance(x, Product) else x)
        out = self._new(*base.shape, dtype=dtype)
        _core.layer_norm(self._device, base, residual, weight, bias, eps, out)
        return out

    def linear(
        self,
        x: Array | Sum | Product,
        weight: _core.PackedLinear,
        bias: Floats | None = None,
        activation: ActivationKind | None = None,
    ) -> Array | Product:
        source = self._value(x)
        if activation is None:
            return Product(source, weight, bias)
        out = self._new(len(source), weight.out_features)
        _core.linear(self._device, source, weight, out, bias, activation)
        return out

    def gated_linear(
        self, x: Array | Sum | Product, weight: _core.PackedLinear, bias: Floats | None, kind: ActivationKind
    ) -> Array:
        source = self._value(x)
        out = self._new(len(source), weight.out_features // 2)
        _core.linear(self._device, source, weight, out, bias, kind)
        return out

    def attention(
        self,
        qkv: Floats | Sum | Product,
        layer: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        rope: Floats | None = None,
        head_norm: HeadNorm | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        alibi_slopes: Floats | None = None,
    ) -> Array:
        source = self._value(qkv)
        step, cache = self._step, self._kv_cache[:, layer]
        assert cache.shape[2] == num_kv_heads
        q = self._new(len(source), num_heads, head_dim)
        norms = {} if head_norm is None else {"q_norm": head_norm.query, "k_norm": head_norm.key}
        _core.rotary_cache_write(
            self._device, source, None if rope is None else step.positions, step.slot_mapping, rope, cache, q,
            norm_eps=0.0 if head_norm is None else head_norm.eps, kv_cache_dtype=self._kv_cache_dtype, **norms,
        )  # fmt: skip
        out = self._new(len(source), num_heads * head_dim)
        _core.paged_attention(
            self._device, q, cache, step.query_start, step.context_lens, step.block_tables, out,
            scale=scale, soft_cap=soft_cap, window=window, alibi_slopes=alibi_slopes,
            kv_cache_dtype=self._kv_cache_dtype,
        )  # fmt: skip
        return out

    def soft_cap(self, x: Floats | Sum | Product, cap: float) -> Floats:
        source = self._value(x)
        _core.soft_cap(self._device, source, cap)
        return source

    def add(self, x: Floats | Sum | Product, y: Floats | Sum | Product) -> Floats | Sum:
        if isinstance(y, Product) and y.value is None:
            out = self._value(x)
            _core.linear(self._device, y.x, y.weight, out, y.bias, adds=True)
            return out
        return Sum(self._value(x), self._value(y))

    def all_reduce(
        self, y: Floats | Sum | Product, *, add: Floats | Sum | Product | None = None
    ) -> Floats | Sum | Product:
        return y if add is None else self.add(add, y)

    def rows(self, x: Floats | Sum | Product, sample_rows: Literal["sample_rows"]) -> Floats:
        source = self._value(x)
        out = self._floats(len(self._step.sample_rows), source.shape[1])
        _core.gather_rows(self._device, source, self._step.sample_rows, out)
        return out

    def _floats(self, *shape: int) -> Floats:
        return np.full(shape, np.nan, np.float32)

    def _new(self, *shape: int, dtype: Precision = "activation") -> Array:
        """Full of ones' bits, NaN in either dtype: whatever a kernel leaves out shows."""
        is_float = dtype == "float32" or self._dtype == "float32"
        out: Array = np.empty(shape, np.float32 if is_float else np.uint16)
        out.view(np.uint8)[...] = 0xFF
        return out

    def _value(self, x: Array | Sum | Product) -> Array:
        if isinstance(x, Product):
            if x.value is None:
                x.value = self._floats(len(x.x), x.weight.out_features)
                _core.linear(self._device, x.x, x.weight, x.value, x.bias)
            return x.value
        if not isinstance(x, Sum):
            return x
        base, residual = _parts(x)
        if residual is not None:
            _core.add(self._device, base, residual)
        return base


def _parts(x: Floats | Sum) -> tuple[Floats, Floats | None]:
    """What a kernel reads and what it adds to it in place; the sum stands there afterwards."""
    if not isinstance(x, Sum):
        return x, None
    residual, x.y = x.y, None
    return x.x, residual
