"""TorchOps: the ops a model's forward() calls, computed at once on torch tensors.

The same model code that GraphOps records, run plainly: one tensor after the other, nothing fused, nothing in place. In
float32 it is what the kernels are measured against, up to a tolerance: torch sums in an order of its own. Only who
wants torch imports this module.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from fastpaged.ops.torch_attention import paged_attention, rotated
from fastpaged.ops.torch_kv_codes import LARGEST_CODES, through_codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.ops.op_set import ActivationKind, HeadNorm, Precision
    from fastpaged.ops.torch_batch import TorchBatch

ACTIVATIONS: dict[ActivationKind, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class TorchOps:
    """An OpSet for one step: `batch` is computed as the calls come, with its K and V written to kv_cache.

    kv_cache: [num_blocks, num_layers, 2 (K|V), num_kv_heads, block_size, head_dim] in the activation dtype, float32 or
    bfloat16; with a kv_cache_dtype of 8 bits it holds, in that dtype, what the codes and scales of K and V are worth.
    Weights are tensors of the same device: tables and linear weights in the activation dtype, the others in float32.
    Values are rounded to the activation dtype where the recorded graph rounds them; sums stay in float32.
    """

    def __init__(self, batch: TorchBatch, kv_cache: torch.Tensor, kv_cache_dtype: str = "auto") -> None:
        if kv_cache.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"kv_cache must be of dtype float32 or bfloat16, got {kv_cache.dtype}")
        if kv_cache.dim() != 6 or kv_cache.shape[2] != 2:
            raise ValueError(
                "kv_cache must have shape [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], "
                f"got {list(kv_cache.shape)}"
            )
        self._batch = batch
        if kv_cache_dtype not in ("auto", *LARGEST_CODES):
            allowed = ", ".join(("auto", *LARGEST_CODES))
            raise ValueError(f"kv_cache_dtype must be one of {allowed}, got {kv_cache_dtype!r}")
        self._kv_cache = kv_cache
        self._kv_cache_dtype = kv_cache_dtype
        self._dtype = kv_cache.dtype

    def embedding(
        self,
        token_ids: Literal["token_ids"],
        table: torch.Tensor,
        *,
        position_table: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """table[token] * scale, + position_table[position] if given: float32 [tokens, hidden]."""
        if token_ids != "token_ids":
            raise ValueError(f"embedding: token_ids must be the batch's token_ids, got {token_ids!r}")
        rows = table[self._batch.token_ids].float() * scale
        return rows if position_table is None else rows + position_table[self._batch.positions]

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, dtype: Precision = "activation"
    ) -> torch.Tensor:
        """x: float32 [rows, hidden]. x / sqrt(mean(x^2) + eps) * weight."""
        return self._rounded(_rms_norm(x, weight, eps), dtype)

    def layer_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        *,
        dtype: Precision = "activation",
    ) -> torch.Tensor:
        """x: float32 [rows, hidden]. (x - mean) / sqrt(variance + eps) * weight + bias."""
        return self._rounded(functional.layer_norm(x, weight.shape, weight, bias, eps), dtype)

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: ActivationKind | None = None,
    ) -> torch.Tensor:
        """x @ weight^T + bias, float32 [rows, out_features]; with an activation, that of it in the activation dtype."""
        y = self._product("linear", x, weight, bias)
        return y if activation is None else _activation(activation)(y).to(self._dtype)

    def gated_linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kind: ActivationKind
    ) -> torch.Tensor:
        """activation(gates) * ups of x @ weight^T + bias, in the activation dtype, [rows, features]."""
        if len(weight) % 2:
            raise ValueError(f"gated_linear: weight must have as many gates as ups, got {len(weight)} rows in all")
        gate, up = self._product("gated_linear", x, weight, bias).chunk(2, dim=1)
        return (_activation(kind)(gate) * up).to(self._dtype)

    def attention(
        self,
        qkv: torch.Tensor,
        layer: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        rope: torch.Tensor | None = None,
        head_norm: HeadNorm | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Head norm, rotary embedding, cache write and causal paged attention of one layer, as OpSet says."""
        cols = (num_heads + 2 * num_kv_heads) * head_dim
        if qkv.shape[1] != cols:
            raise ValueError(f"attention: qkv must have {cols} columns, got {qkv.shape[1]}")
        q, k, v = qkv.unflatten(1, (-1, head_dim)).split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        if head_norm is not None:
            q, k = _rms_norm(q, head_norm.query, head_norm.eps), _rms_norm(k, head_norm.key, head_norm.eps)
        if rope is not None:
            q, k = rotated(q, rope, self._batch.positions), rotated(k, rope, self._batch.positions)
        cache = self._kv_cache[:, layer]
        block_size = cache.shape[3]
        blocks, offsets = self._batch.slot_mapping // block_size, self._batch.slot_mapping % block_size
        cache[blocks, :, :, offsets] = self._kept(torch.stack([k, v], dim=1))
        return paged_attention(
            q.to(self._dtype), cache, self._batch,
            scale=scale, window=window, soft_cap=soft_cap, alibi_slopes=alibi_slopes,
        )  # fmt: skip

    def soft_cap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """x: float32. cap * tanh(x / cap)."""
        return cap * torch.tanh(x / cap)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x + y, both float32 [rows, hidden]."""
        if x.shape != y.shape:
            raise ValueError(f"add: x and y must have one shape, got {list(x.shape)} and {list(y.shape)}")
        return x + y

    def all_reduce(self, y: torch.Tensor, *, add: torch.Tensor | None = None) -> torch.Tensor:
        """y, whole already on one worker; with `add`, add + y."""
        return y if add is None else self.add(add, y)

    def rows(self, x: torch.Tensor, sample_rows: Literal["sample_rows"]) -> torch.Tensor:
        """The rows of x that are sampled: from [tokens, hidden] to [sampled rows, hidden]."""
        if sample_rows != "sample_rows":
            raise ValueError(f"rows: sample_rows must be the batch's sample_rows, got {sample_rows!r}")
        return x[self._batch.sample_rows]

    def _product(self, op: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if x.dtype != self._dtype or weight.dtype != self._dtype:
            raise ValueError(f"{op}: x and weight must be {self._dtype}, got {x.dtype} and {weight.dtype}")
        return functional.linear(x.float(), weight.float(), bias)  # products of bfloat16 are exact in float32

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        """What the cache holds of keys or values [..., head_dim]."""
        kept = x if self._kv_cache_dtype == "auto" else through_codes(x, self._kv_cache_dtype)
        return kept.to(self._dtype)

    def _rounded(self, x: torch.Tensor, dtype: Precision) -> torch.Tensor:
        return x if dtype == "float32" else x.to(self._dtype)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def _activation(kind: ActivationKind) -> Callable[[torch.Tensor], torch.Tensor]:
    if kind not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {kind!r}")
    return ACTIVATIONS[kind]
