"""Llama in float32 NumPy, as plainly as it can be said: no cache, no batch, no fusion. And ways to get it wrong."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from fastpaged.models.llama_config import LlamaConfig

Array = npt.NDArray[np.float32]
Mistake = Literal[
    "neighbours rotated",
    "queries a position late",
    "no mask",
    "own key unseen",
    "gate and up swapped",
    "kv heads interleaved",
    "no scale",
    "norm without weight",
    "attention not added",
    "last layer's mlp not added",
]
MISTAKES: tuple[Mistake, ...] = get_args(Mistake)


def plain_logits(
    config: LlamaConfig, weights: dict[str, Array], token_ids: list[int], mistake: Mistake | None = None
) -> Array:
    """[tokens, vocab]. With a mistake: what a model with that bug would say."""
    num_tokens = len(token_ids)

    def norm(x: Array, name: str) -> Array:
        scaled: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(config.rms_norm_eps))
        return scaled if mistake == "norm without weight" else scaled * weights[name]

    def rotate(x: Array, late: bool = False) -> Array:
        cos, sin = _angles(config, np.arange(num_tokens) + late)
        if mistake == "neighbours rotated":
            even, odd = x[..., 0::2], x[..., 1::2]
            return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def attention(h: Array, prefix: str) -> Array:
        q, k, v = (
            (h @ weights[f"{prefix}.{name}_proj.weight"].T).reshape(num_tokens, -1, config.head_dim).swapaxes(0, 1)
            for name in "qkv"
        )
        q, k = rotate(q, mistake == "queries a position late"), rotate(k)
        group = config.num_heads // config.num_kv_heads
        if mistake == "kv heads interleaved":
            k, v = np.tile(k, (group, 1, 1)), np.tile(v, (group, 1, 1))
        else:
            k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = q @ k.swapaxes(1, 2) * np.float32(1 if mistake == "no scale" else config.head_dim**-0.5)
        if mistake != "no mask":
            unseen = np.triu(np.ones((num_tokens, num_tokens), bool), k=1)
            if mistake == "own key unseen":
                unseen[np.arange(1, num_tokens), np.arange(1, num_tokens)] = True
            scores = np.where(unseen, -np.inf, scores)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
        out: Array = mixed.swapaxes(0, 1).reshape(num_tokens, -1) @ weights[f"{prefix}.o_proj.weight"].T
        return out

    def mlp(h: Array, prefix: str) -> Array:
        gate, up = h @ weights[f"{prefix}.gate_proj.weight"].T, h @ weights[f"{prefix}.up_proj.weight"].T
        if mistake == "gate and up swapped":
            gate, up = up, gate
        out: Array = gate / (1 + np.exp(-gate)) * up @ weights[f"{prefix}.down_proj.weight"].T
        return out

    x = weights["model.embed_tokens.weight"][token_ids]
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        a = attention(norm(x, f"{layer}.input_layernorm.weight"), f"{layer}.self_attn")
        x = x if mistake == "attention not added" else x + a
        is_left_out = mistake == "last layer's mlp not added" and i == config.num_layers - 1
        x = x if is_left_out else x + mlp(norm(x, f"{layer}.post_attention_layernorm.weight"), f"{layer}.mlp")
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    logits: Array = norm(x, "model.norm.weight") @ weights[head].T
    return logits


def _angles(config: LlamaConfig, positions: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    frequencies = config.rope.theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = positions[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
