"""Rotary embedding, and causal attention over a paged KV cache, plainly in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fastpaged.ops.torch_batch import TorchBatch


def rotated(x: torch.Tensor, rope: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x: float32 [tokens, heads, head_dim]; rope: [positions, rotary], rotary / 2 cosines, then as many sines.

    Element i < rotary / 2 turns with i + rotary / 2; what lies beyond `rotary` stays.
    """
    rotary = rope.shape[1]
    cos, sin = rope[positions][:, None].chunk(2, dim=-1)
    low, high = x[..., :rotary].chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin, x[..., rotary:]], dim=-1)


def paged_attention(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: TorchBatch,
    *,
    scale: float,
    window: int,
    soft_cap: float,
    alibi_slopes: torch.Tensor | None,
) -> torch.Tensor:
    """q: [tokens, num_heads, head_dim]; kv_cache: [num_blocks, 2 (K|V), num_kv_heads, block_size, head_dim], one layer.

    Sums are in float32; returns q's dtype, [tokens, num_heads * head_dim].
    """
    out = torch.empty_like(q)
    starts, lengths = batch.query_start.tolist(), batch.context_lens.tolist()
    for s, length in enumerate(lengths):
        keys, values = _gathered(kv_cache, batch.block_tables[s], length)
        rows = slice(starts[s], starts[s + 1])
        scores = _scores(q[rows], keys, scale, soft_cap)  # [num_kv_heads, group, queries, keys]
        query_at = batch.positions[rows][:, None]
        key_at = torch.arange(length, device=q.device)[None, :]
        if alibi_slopes is not None:
            scores = scores + alibi_slopes.view(*scores.shape[:2], 1, 1) * (key_at - query_at)
        unseen = key_at > query_at
        if window:
            unseen = unseen | (key_at <= query_at - window)
        weights = scores.masked_fill(unseen, -torch.inf).softmax(dim=-1)
        mixed = torch.einsum("kgqs,ksd->qkgd", weights, values)
        out[rows] = mixed.reshape(q[rows].shape).to(q.dtype)
    return out.flatten(1)


def _gathered(kv_cache: torch.Tensor, blocks: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of positions [0, length): float32 [num_kv_heads, length, head_dim] each."""
    num_blocks = -(-length // kv_cache.shape[3])
    pieces = kv_cache[blocks[:num_blocks]]  # [blocks, 2, num_kv_heads, block_size, head_dim]
    keys, values = pieces.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length].float()
    return keys, values


def _scores(q: torch.Tensor, keys: torch.Tensor, scale: float, soft_cap: float) -> torch.Tensor:
    """num_heads / num_kv_heads neighbouring query heads share a KV head."""
    grouped = q.float().unflatten(1, (keys.shape[0], -1))
    scores = torch.einsum("qkgd,ksd->kgqs", grouped, keys) * scale
    return soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores
