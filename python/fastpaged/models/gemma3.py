"""Gemma 3, text: norms before and behind attention and MLP, QK norms, most layers with a window and a rotation of their
own.

Norms multiply by one plus their stored weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fastpaged.config import ModelConfig
from fastpaged.models.activations import activation_from_hf
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.llama_config import hf_window
from fastpaged.models.rope import Rope, hf_rope, rope_from_gguf
from fastpaged.models.rotary import rotary_table
from fastpaged.models.sizes import Sizes, gguf_sizes, hf_sizes
from fastpaged.ops.op_set import HeadNorm

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import (
        ActivationKind,
        BatchInputs,
        FloatTable,
        GatedWeight,
        LinearWeight,
        OpSet,
        Table,
        Value,
        Vector,
    )


@dataclass(frozen=True)
class Gemma3Config(ModelConfig):
    """windows: how many keys a query of each layer sees, its own included; 0: all.

    rope, window_rope: of the layers without a window, and of those with one. scale: of the scores. logit_cap: soft cap
    of the logits; 0: none.
    """

    intermediate_size: int
    rms_norm_eps: float
    activation: ActivationKind
    windows: tuple[int, ...]
    rope: Rope
    window_rope: Rope
    scale: float
    logit_cap: float

    @property
    def table_bytes_per_position(self) -> int:
        """Of the rotary tables."""
        return self.rope.bytes_per_position + self.window_rope.bytes_per_position


@dataclass(frozen=True)
class Gemma3Layer:
    """One decoder layer. qkv: q, k and v stacked; gate_up: gate and up stacked."""

    attention_norm: Vector
    qkv: LinearWeight
    head_norm: HeadNorm
    o: LinearWeight
    after_attention_norm: Vector
    mlp_norm: Vector
    gate_up: GatedWeight
    down: LinearWeight
    after_mlp_norm: Vector


@dataclass(frozen=True)
class Gemma3Weights:
    """rope, window_rope: [positions, head_dim] cosines, then sines."""

    embed: Table
    layers: tuple[Gemma3Layer, ...]
    norm: Vector
    lm_head: LinearWeight
    rope: FloatTable
    window_rope: FloatTable


@dataclass(frozen=True)
class Gemma3:
    """A loaded model."""

    family: ClassVar[str] = "gemma3"
    hf_architectures: ClassVar[tuple[str, ...]] = ("Gemma3ForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("gemma3",)
    base_prefix: ClassVar[str] = "model."
    embedding_name: ClassVar[str] = "model.embed_tokens.weight"
    head_name: ClassVar[str] = "lm_head.weight"
    ignored_suffixes: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)

    config: Gemma3Config
    weights: Gemma3Weights

    def forward(self, op: OpSet, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""
        c, w = self.config, self.weights
        x = op.embedding(batch.token_ids, w.embed, scale=c.hidden_size**0.5)
        for index, layer in enumerate(w.layers):
            h = op.rms_norm(x, layer.attention_norm, c.rms_norm_eps)
            a = op.attention(
                op.linear(h, layer.qkv),
                index,
                num_heads=c.num_heads,
                num_kv_heads=c.num_kv_heads,
                head_dim=c.head_dim,
                scale=c.scale,
                rope=w.window_rope if c.windows[index] else w.rope,
                head_norm=layer.head_norm,
                window=c.windows[index],
            )
            a = op.all_reduce(op.linear(a, layer.o))
            x = op.add(x, op.rms_norm(a, layer.after_attention_norm, c.rms_norm_eps, dtype="float32"))
            h = op.rms_norm(x, layer.mlp_norm, c.rms_norm_eps)
            g = op.gated_linear(h, layer.gate_up, None, c.activation)
            g = op.all_reduce(op.linear(g, layer.down))
            x = op.add(x, op.rms_norm(g, layer.after_mlp_norm, c.rms_norm_eps, dtype="float32"))
        h = op.rms_norm(op.rows(x, batch.sample_rows), w.norm, c.rms_norm_eps)
        logits = op.linear(h, w.lm_head)
        return op.soft_cap(logits, c.logit_cap) if c.logit_cap else logits

    @classmethod
    def config_from_hf(cls, keys: Keys) -> Gemma3Config:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        keys.only("attention_bias", None, False)
        keys.only("attn_logit_softcapping", None, why="transformers reads this key and does nothing about it")
        keys.only("use_bidirectional_attention", None, False)
        sizes = hf_sizes(keys, max_positions=131072, tied=True)
        sizes["head_dim"] = keys.integer("head_dim", 256)
        return Gemma3Config(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("intermediate_size"),
            rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
            activation=activation_from_hf(keys, "hidden_activation", "gelu_pytorch_tanh"),
            windows=_windows_from_hf(keys, sizes["num_layers"]),
            rope=_rope_from_hf(keys, sizes, "full_attention", keys.number("rope_theta", 1e6)),
            window_rope=_rope_from_hf(keys, sizes, "sliding_attention", keys.number("rope_local_base_freq", 1e4)),
            scale=keys.number("query_pre_attn_scalar", 256.0) ** -0.5,
            logit_cap=keys.number("final_logit_softcapping") if "final_logit_softcapping" in keys else 0.0,
        )

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> Gemma3Config:
        """From a GGUF file's metadata. It says neither which layers have windows nor what scales the scores."""
        served = ("attention.sliding_window_pattern", "final_logit_softcapping")
        sizes = gguf_sizes(keys, tensor_names, served=served)
        window = keys.integer("gemma3.attention.sliding_window") if "gemma3.attention.sliding_window" in keys else 0
        is_27b = sizes["num_layers"] == 62
        head_size = sizes["hidden_size"] // sizes["num_heads"] if is_27b else sizes["head_dim"]
        cap = "gemma3.final_logit_softcapping"
        return Gemma3Config(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("gemma3.feed_forward_length"),
            rms_norm_eps=keys.number("gemma3.attention.layer_norm_rms_epsilon"),
            activation="gelu_tanh",
            windows=_windows(sizes["num_layers"], window, keys.integer("gemma3.attention.sliding_window_pattern", 6)),
            rope=rope_from_gguf(keys, sizes, tensor_names),
            window_rope=Rope(keys.number("gemma3.rope.freq_base_swa", 1e4), sizes["head_dim"]),
            scale=head_size**-0.5,
            logit_cap=keys.number(cap) if cap in keys else 0.0,
        )

    @classmethod
    def load(cls, config: Gemma3Config, source: WeightSource, max_model_len: int) -> Gemma3:
        """max_model_len: how many positions the rotary tables hold."""
        embed = source.table(cls.embedding_name)
        layers = tuple(_load_layer(config, source, f"model.layers.{i}.") for i in range(config.num_layers))
        norm = _load_norm(source, "model.norm.weight")
        head = source.linear(cls.embedding_name if config.tie_word_embeddings else cls.head_name)
        rope, window_rope = (rotary_table(max_model_len, rope, source) for rope in (config.rope, config.window_rope))
        return cls(config, Gemma3Weights(embed, layers, norm, head, rope, window_rope))

    @staticmethod
    def weight_shapes(config: Gemma3Config) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (q_size, c.hidden_size),
            "self_attn.k_proj": (kv_size, c.hidden_size),
            "self_attn.v_proj": (kv_size, c.hidden_size),
            "self_attn.q_norm": (c.head_dim,),
            "self_attn.k_norm": (c.head_dim,),
            "self_attn.o_proj": (c.hidden_size, q_size),
            "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
            "mlp.up_proj": (c.intermediate_size, c.hidden_size),
            "mlp.down_proj": (c.hidden_size, c.intermediate_size),
            "input_layernorm": (c.hidden_size,),
            "post_attention_layernorm": (c.hidden_size,),
            "pre_feedforward_layernorm": (c.hidden_size,),
            "post_feedforward_layernorm": (c.hidden_size,),
        }
        shapes = {f"model.layers.{i}.{name}.weight": s for i in range(c.num_layers) for name, s in layer.items()}
        shapes |= {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size), "model.norm.weight": (c.hidden_size,)}
        if not c.tie_word_embeddings:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes | c.rope.tensors | c.window_rope.tensors

    @staticmethod
    def gguf_names(config: Gemma3Config) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it: to the norms it adds their one."""
        names = {
            "model.embed_tokens.weight": GgufName("token_embd.weight"),
            "model.norm.weight": GgufName("output_norm.weight", minus_one=True),
            "lm_head.weight": GgufName("output.weight"),
        }
        for i in range(config.num_layers):
            for part, gguf in _GGUF_LAYER_NAMES.items():
                is_norm = part.endswith("norm")
                names[f"model.layers.{i}.{part}.weight"] = GgufName(f"blk.{i}.{gguf}.weight", minus_one=is_norm)
        return names


_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _windows_from_hf(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """By layer_types, or every layer but each sixth (or what sliding_window_pattern says)."""
    window = hf_window(keys, 4096)
    if "layer_types" not in keys:
        pattern = keys.integer("sliding_window_pattern", 6)
        slides = [(i + 1) % pattern != 0 for i in range(num_layers)]
    else:
        kinds = keys.strings("layer_types", num_layers, allowed=("sliding_attention", "full_attention"))
        slides = [kind == "sliding_attention" for kind in kinds]
    if any(slides) and not window:
        raise keys.error("sliding_window", "an integer where some layers are of sliding attention")
    return tuple(window if slide else 0 for slide in slides)


def _windows(num_layers: int, window: int, pattern: int) -> tuple[int, ...]:
    return tuple(window if (i + 1) % pattern else 0 for i in range(num_layers))


def _rope_from_hf(keys: Keys, sizes: Sizes, kind: str, theta: float) -> Rope:
    """rope_parameters has an object for each kind of layer; in the older spelling rope_scaling means the full ones."""
    own = keys.within("rope_parameters").within(kind)
    if kind == "full_attention" and "rope_scaling" in keys:
        own = keys.within("rope_scaling")
    return hf_rope(own, keys, sizes, theta=theta)


def _load_norm(source: WeightSource, name: str) -> Vector:
    return source.vector(name) + np.float32(1)


def _load_layer(config: Gemma3Config, source: WeightSource, prefix: str) -> Gemma3Layer:
    def linear(*names: str) -> LinearWeight:
        return source.linear(*(f"{prefix}{name}.weight" for name in names))

    def norm(name: str) -> Vector:
        return _load_norm(source, f"{prefix}{name}.weight")

    return Gemma3Layer(
        attention_norm=norm("input_layernorm"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        head_norm=HeadNorm(norm("self_attn.q_norm"), norm("self_attn.k_norm"), config.rms_norm_eps),
        o=linear("self_attn.o_proj"),
        after_attention_norm=norm("post_attention_layernorm"),
        mlp_norm=norm("pre_feedforward_layernorm"),
        gate_up=source.gated_linear(f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"),
        down=linear("mlp.down_proj"),
        after_mlp_norm=norm("post_feedforward_layernorm"),
    )
