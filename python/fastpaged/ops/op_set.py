"""OpSet: the ops a model's forward() is written against. GraphOps records them, TorchOps computes them.

Arrays of a step have one row per token, or per sampled token. Sums stay in float32; what feeds a linear layer, and the
KV cache, is in the activation dtype (bfloat16 or float32, one for the whole model). Values are opaque to a model: it
only passes them on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

ActivationKind = Literal["silu", "gelu", "gelu_tanh", "relu"]  # gelu: with erf; gelu_tanh: its approximation by tanh
Precision = Literal["activation", "float32"]

# What weights and values are depends on the op set: NumPy arrays and packed weights, or torch tensors.
Value = Any  # an array of the step
Table = Any  # [rows, hidden] in the activation dtype
FloatTable = Any  # [rows, columns] float32
Vector = Any  # [size] float32
LinearWeight = Any  # [out_features, in_features] in the activation dtype, packed
GatedWeight = Any  # [2 features, in_features], gates first, packed for gated_linear()


@dataclass(frozen=True)
class BatchInputs:
    """The arrays of a step that a model may name; the others reach their ops by themselves."""

    token_ids: Literal["token_ids"] = "token_ids"
    sample_rows: Literal["sample_rows"] = "sample_rows"


@dataclass(frozen=True)
class HeadNorm:
    """An RMS norm over each head of q and k, before the rotation. query, key: [head_dim] float32."""

    query: Vector
    key: Vector
    eps: float


class OpSet(Protocol):
    """At most 16 kernels lie behind these. [rows] is tokens until rows(), sampled rows after it."""

    def embedding(
        self,
        token_ids: Literal["token_ids"],
        table: Table,
        *,
        position_table: FloatTable | None = None,
        scale: float = 1.0,
    ) -> Value:
        """table[token] * scale, + position_table[position] if given: float32 [tokens, hidden]."""

    def rms_norm(self, x: Value, weight: Vector, eps: float, *, dtype: Precision = "activation") -> Value:
        """x: float32 [rows, hidden]. x / sqrt(mean(x^2) + eps) * weight."""

    def layer_norm(
        self, x: Value, weight: Vector, bias: Vector | None, eps: float, *, dtype: Precision = "activation"
    ) -> Value:
        """x: float32 [rows, hidden]. (x - mean) / sqrt(variance + eps) * weight + bias."""

    def linear(
        self, x: Value, weight: LinearWeight, bias: Vector | None = None, activation: ActivationKind | None = None
    ) -> Value:
        """x: activation dtype [rows, in_features]. x @ weight^T + bias, float32 [rows, out_features]; with an
        activation, that of it in the activation dtype."""

    def gated_linear(self, x: Value, weight: GatedWeight, bias: Vector | None, kind: ActivationKind) -> Value:
        """x: activation dtype [rows, in_features]. activation(gates) * ups of x @ weight^T + bias, in the activation
        dtype, [rows, features]."""

    def attention(
        self,
        qkv: Value,
        layer: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        rope: FloatTable | None = None,
        head_norm: HeadNorm | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        alibi_slopes: Vector | None = None,
    ) -> Value:
        """Head norm, rotary embedding, cache write and causal paged attention of one layer.

        qkv: float32 [tokens, (num_heads + 2 num_kv_heads) * head_dim]: all q heads, then k, then v.
        rope: [positions, rotary]: rotary / 2 cosines, then as many sines; it turns the first `rotary` elements of each
        head, i with i + rotary / 2. Score of a key: s = q . k * scale; with soft_cap, s = soft_cap * tanh(s /
        soft_cap); with alibi_slopes [num_heads], s += slope * (key position - query position). window: how many keys
        a query sees, its own included; 0: all. Returns the activation dtype, [tokens, num_heads * head_dim].
        """

    def soft_cap(self, x: Value, cap: float) -> Value:
        """x: float32. cap * tanh(x / cap); x itself no longer exists."""

    def add(self, x: Value, y: Value) -> Value:
        """x + y, both float32 [rows, hidden]. x and y themselves no longer exist."""

    def all_reduce(self, y: Value, *, add: Value | None = None) -> Value:
        """y, summed over the workers (on one worker it is whole already); with `add`, add + y, as by add()."""

    def rows(self, x: Value, sample_rows: Literal["sample_rows"]) -> Value:
        """The rows of x that are sampled: from [tokens, hidden] to [sampled rows, hidden]."""
