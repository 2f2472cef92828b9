"""The Llama family: RMS norm, rotary positions, grouped-query attention, a SiLU-gated MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.models.gguf_name import GgufName
from fastpaged.models.rotary import rotary_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fastpaged import _core
    from fastpaged.config import ModelConfig
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.graph_ops import BatchInputs, GraphOps, Sum, Value


@dataclass(frozen=True)
class LlamaLayer:
    """One decoder layer. qkv: q, k and v stacked; gate_up: gate and up stacked."""

    input_norm: npt.NDArray[np.float32]
    qkv: _core.PackedLinear
    o: _core.PackedLinear
    mlp_norm: npt.NDArray[np.float32]
    gate_up: _core.PackedLinear
    down: _core.PackedLinear


@dataclass(frozen=True)
class LlamaWeights:
    """All weights; rope: [positions, head_dim] cosines, then sines."""

    embed: npt.NDArray[np.uint16]
    layers: tuple[LlamaLayer, ...]
    norm: npt.NDArray[np.float32]
    lm_head: _core.PackedLinear
    rope: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Llama:
    """A loaded model."""

    config: ModelConfig
    weights: LlamaWeights

    def forward(self, op: GraphOps, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""
        c, w = self.config, self.weights
        scale = c.head_dim**-0.5
        x: Value | Sum = op.embedding(batch.token_ids, w.embed)
        for index, layer in enumerate(w.layers):
            h = op.rms_norm(x, layer.input_norm, c.rms_norm_eps)
            a = op.attention(op.linear(h, layer.qkv), index, w.rope, num_heads=c.num_heads, scale=scale)
            x = op.all_reduce(op.linear(a, layer.o), add=x)
            h = op.rms_norm(x, layer.mlp_norm, c.rms_norm_eps)
            g = op.gated_activation(op.linear(h, layer.gate_up), "silu")
            x = op.all_reduce(op.linear(g, layer.down), add=x)
        h = op.rms_norm(op.rows(x, batch.sample_rows), w.norm, c.rms_norm_eps)
        return op.linear(h, w.lm_head)

    @classmethod
    def load(cls, config: ModelConfig, source: WeightSource, max_model_len: int) -> Llama:
        """max_model_len: how many positions the rotary table holds."""
        embed = source.table("model.embed_tokens.weight")
        layers = tuple(_load_layer(source, f"model.layers.{i}.") for i in range(config.num_layers))
        norm = source.vector("model.norm.weight")
        head_name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        rope = rotary_table(max_model_len, config.head_dim, config.rope_theta)
        return cls(config, LlamaWeights(embed, layers, norm, source.linear(head_name), rope))

    @staticmethod
    def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
        for i in range(c.num_layers):
            prefix = f"model.layers.{i}."
            shapes[prefix + "input_layernorm.weight"] = (c.hidden_size,)
            shapes[prefix + "self_attn.q_proj.weight"] = (q_size, c.hidden_size)
            shapes[prefix + "self_attn.k_proj.weight"] = (kv_size, c.hidden_size)
            shapes[prefix + "self_attn.v_proj.weight"] = (kv_size, c.hidden_size)
            shapes[prefix + "self_attn.o_proj.weight"] = (c.hidden_size, q_size)
            shapes[prefix + "post_attention_layernorm.weight"] = (c.hidden_size,)
            shapes[prefix + "mlp.gate_proj.weight"] = (c.intermediate_size, c.hidden_size)
            shapes[prefix + "mlp.up_proj.weight"] = (c.intermediate_size, c.hidden_size)
            shapes[prefix + "mlp.down_proj.weight"] = (c.hidden_size, c.intermediate_size)
        shapes["model.norm.weight"] = (c.hidden_size,)
        if not c.tie_word_embeddings:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes

    @staticmethod
    def gguf_names(config: ModelConfig) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it."""
        names = {
            "model.embed_tokens.weight": GgufName("token_embd.weight"),
            "model.norm.weight": GgufName("output_norm.weight"),
            "lm_head.weight": GgufName("output.weight"),
        }
        permuted_heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}
        for i in range(config.num_layers):
            for part, gguf in _GGUF_LAYER_NAMES.items():
                names[f"model.layers.{i}.{part}.weight"] = GgufName(f"blk.{i}.{gguf}.weight", permuted_heads.get(part))
        return names


_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _load_layer(source: WeightSource, prefix: str) -> LlamaLayer:
    def names(*parts: str) -> list[str]:
        return [f"{prefix}{part}.weight" for part in parts]

    return LlamaLayer(
        input_norm=source.vector(prefix + "input_layernorm.weight"),
        qkv=source.linear(*names("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        o=source.linear(*names("self_attn.o_proj")),
        mlp_norm=source.vector(prefix + "post_attention_layernorm.weight"),
        gate_up=source.linear(*names("mlp.gate_proj", "mlp.up_proj")),
        down=source.linear(*names("mlp.down_proj")),
    )
