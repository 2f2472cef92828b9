"""The configuration of the Llama family and of those that are nearly the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.config import ModelConfig
from fastpaged.config.keys import INT32_MAX
from fastpaged.config.model_config import LAYER_LIMITS
from fastpaged.models.rope import Rope, reached_positions, rope_from_gguf, rope_from_hf
from fastpaged.models.sizes import gguf_sizes, hf_sizes

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """windows: how many keys a query of each layer sees, its own included; 0: all."""

    intermediate_size: int
    rms_norm_eps: float
    rope: Rope
    windows: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def table_bytes_per_position(self) -> int:
        """Of the rotary table."""
        return self.rope.bytes_per_position


def llama_from_hf(
    family: str,
    keys: Keys,
    *,
    max_positions: int = 2048,
    head_dim: int | None = None,
    eps: float = 1e-6,
    windows: tuple[int, ...] = (),
    rotated_share: float | None = None,
    phi_names: bool = False,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> LlamaConfig:
    """From config.json. max_positions, head_dim, eps: where the file says none. windows: (): none. rotated_share,
    phi_names: as share and phi_names of rope_from_hf()."""
    keys.only("hidden_act", None, "silu")
    sizes = hf_sizes(keys, max_positions=max_positions, head_dim=head_dim)
    rope = rope_from_hf(keys, sizes, share=rotated_share, phi_names=phi_names)
    sizes["max_position_embeddings"] = reached_positions(rope, sizes)
    return LlamaConfig(
        family,
        **sizes,
        intermediate_size=keys.integer("intermediate_size"),
        rms_norm_eps=keys.number("rms_norm_eps", eps),
        rope=rope,
        windows=windows or (0,) * sizes["num_layers"],
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def llama_from_gguf(family: str, keys: Keys, tensor_names: Collection[str]) -> LlamaConfig:
    """From a GGUF file's metadata. Whether there are biases and norms of heads is seen from the first layer's tensors.

    llama.cpp leaves the sliding window out of some files (Mistral 7B v0.1) and does without: so do we, there.
    """
    sizes = gguf_sizes(keys, tensor_names)
    name = keys.string("general.architecture")
    rope = rope_from_gguf(keys, sizes, tensor_names)
    sizes["max_position_embeddings"] = reached_positions(rope, sizes)
    window = keys.integer(f"{name}.attention.sliding_window", 0, limits=(0, INT32_MAX))
    return LlamaConfig(
        family,
        **sizes,
        intermediate_size=keys.integer(f"{name}.feed_forward_length"),
        rms_norm_eps=keys.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope=rope,
        windows=(window,) * sizes["num_layers"],
        qkv_bias="blk.0.attn_q.bias" in tensor_names or "blk.0.attn_qkv.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
    )


def hf_window(keys: Keys, default: int) -> int:
    """How many keys are seen in a window: 0 where sliding_window is null; default: where the file has no such key."""
    if "sliding_window" not in keys.values:
        return default
    return keys.integer("sliding_window") if "sliding_window" in keys else 0


def hf_windows(keys: Keys, first_sliding: int | None, window: int) -> tuple[int, ...]:
    """Of each layer, as layer_types says, or else: layers from that number on have a window. None: no layer.

    window: how many keys are seen in one; 0 where config.json has none.
    """
    num_layers = keys.integer("num_hidden_layers", limits=LAYER_LIMITS)
    if "layer_types" in keys:
        kinds = keys.strings("layer_types", num_layers, allowed=("full_attention", "sliding_attention"))
        is_sliding = [kind == "sliding_attention" for kind in kinds]
        if any(is_sliding) and not window:
            raise keys.error("layer_types", "all 'full_attention' where there is no sliding_window")
    else:
        is_sliding = [first_sliding is not None and i >= first_sliding for i in range(num_layers)]
    return tuple(window if slides else 0 for slides in is_sliding)
