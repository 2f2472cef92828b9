"""The keys by which most families say their sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from fastpaged.config.model_config import LAYER_LIMITS, POSITION_LIMITS

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys


class Sizes(TypedDict):
    """The fields of ModelConfig but its first."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool


def hf_sizes(
    keys: Keys, *, max_positions: int = 2048, head_dim: int | None = None, tied: bool = False, grouped: bool = True
) -> Sizes:
    """From config.json. max_positions, head_dim, tied: what the family has where the file does not say; without a
    head_dim, the heads share the hidden size. grouped: whether num_key_value_heads means anything to the family."""
    num_heads = keys.integer("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": keys.integer("num_hidden_layers", limits=LAYER_LIMITS),
        "num_heads": num_heads,
        "num_kv_heads": keys.integer("num_key_value_heads", num_heads) if grouped else num_heads,
        "head_dim": keys.integer("head_dim", head_dim or hidden_size // num_heads),
        "max_position_embeddings": keys.integer("max_position_embeddings", max_positions, limits=POSITION_LIMITS),
        "tie_word_embeddings": keys.boolean("tie_word_embeddings", tied),
    }


# What other architectures of llama.cpp compute, by key, and the values that ask for nothing.
_GGUF_NOTHING: dict[str, tuple[object, ...]] = {
    "attention.causal": (None, True),
    "pooling_type": (None, 0),
    "attention.scale": (None, 0.0),
    "attention.clamp_kqv": (None, 0.0),
    "attention.max_alibi_bias": (None, 0.0),
    "attention.sliding_window_pattern": (None,),
    "attention.temperature_length": (None, 0),
    "attention.temperature_scale": (None, 0.0),
    "attn_logit_softcapping": (None, 0.0),
    "final_logit_softcapping": (None, 0.0),
    "logit_scale": (None, 0.0, 1.0),
    "residual_scale": (None, 0.0, 1.0),
    "embedding_scale": (None, 0.0, 1.0),
}


def gguf_sizes(keys: Keys, tensor_names: Collection[str], *, served: Collection[str] = ()) -> Sizes:
    """From a GGUF file's metadata; a file without output.weight ties the head to the embedding. served: keys, without
    the architecture, that ask for arithmetic which the family has; others are refused."""
    name = keys.string("general.architecture")
    keys.only(f"{name}.expert_count", None, 0, why="mixtures of experts are not supported yet")
    for key, nothing in _GGUF_NOTHING.items():
        if key not in served:
            keys.only(f"{name}.{key}", *nothing, why="nothing else is supported in this family")
    num_heads = keys.integer(f"{name}.attention.head_count")
    hidden_size = keys.integer(f"{name}.embedding_length")
    head_dim = keys.integer(f"{name}.attention.key_length", hidden_size // num_heads)
    if keys.integer(f"{name}.attention.value_length", head_dim) != head_dim:
        raise keys.error(f"{name}.attention.value_length", f"{head_dim}, the head size")
    tokens = keys.values.get("tokenizer.ggml.tokens")
    return {
        "vocab_size": keys.integer(f"{name}.vocab_size", len(tokens) if isinstance(tokens, list) else None),
        "hidden_size": hidden_size,
        "num_layers": keys.integer(f"{name}.block_count", limits=LAYER_LIMITS),
        "num_heads": num_heads,
        "num_kv_heads": keys.integer(f"{name}.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer(f"{name}.context_length", limits=POSITION_LIMITS),
        "tie_word_embeddings": "output.weight" not in tensor_names,
    }
