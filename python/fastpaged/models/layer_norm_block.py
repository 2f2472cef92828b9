"""What the families with layer norms and an MLP without gates share: OPT, GPT-2, Falcon, GPT-NeoX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fastpaged.models.weight_source import Part

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import LinearWeight, Vector


class Linear(NamedTuple):
    """As op.linear(x, *linear) takes it."""

    weight: LinearWeight
    bias: Vector | None


class LayerNorm(NamedTuple):
    """As op.layer_norm(x, *norm) takes it."""

    weight: Vector
    bias: Vector | None
    eps: float


@dataclass(frozen=True)
class LayerNormBlock:
    """One decoder layer. qkv: all q heads, then k, then v. mlp_norm: where the MLP reads what attention reads, that."""

    attention_norm: LayerNorm
    qkv: Linear
    o: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear


def load_norm(source: WeightSource, name: str, eps: float) -> LayerNorm:
    """name: without its .weight and .bias."""
    return LayerNorm(source.vector(f"{name}.weight"), source.vector(f"{name}.bias"), eps)


def load_linear(
    source: WeightSource,
    *names: str,
    has_bias: bool = True,
    rows: npt.NDArray[np.int64] | None = None,
    transposed: bool = False,
) -> Linear:
    """names: without their .weight and .bias, stacked. rows, transposed: as in Part, of each."""
    weight = source.linear(*(Part(f"{name}.weight", rows, transposed) for name in names))
    return Linear(weight, source.vector(*(Part(f"{name}.bias", rows) for name in names)) if has_bias else None)


def grouped_qkv_rows(num_heads: int, num_kv_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Where q, k and v of a fused matrix lie whose rows are [num_kv_heads, heads per KV head + 2, head_dim]: the q
    heads that share a k and a v, then these. Indexing the matrix with it gives all q, then all k, then all v.
    """
    group = num_heads // num_kv_heads
    rows = np.arange((num_heads + 2 * num_kv_heads) * head_dim).reshape(num_kv_heads, group + 2, head_dim)
    return np.concatenate([rows[:, :group].reshape(-1), rows[:, group].reshape(-1), rows[:, group + 1].reshape(-1)])


def whole_head_dim(keys: Keys, key: str, hidden_size: int, num_heads: int) -> int:
    """hidden_size over num_heads, which `key` says."""
    if hidden_size % num_heads:
        raise keys.error(key, f"a divisor of the hidden size, {hidden_size}")
    return hidden_size // num_heads
