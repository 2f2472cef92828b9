"""The Llama family: RMS norm, rotary positions, grouped-query attention, a SiLU-gated MLP.

Families that are nearly the same (Mistral, Qwen, Phi-3) say in their own files what differs, as fields of LlamaConfig
and as names of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.config import ModelConfig
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.rope import Rope, rope_from_gguf, rope_from_hf
from fastpaged.models.rotary import rotary_table
from fastpaged.models.sizes import gguf_sizes, hf_sizes
from fastpaged.ops.op_set import HeadNorm

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import BatchInputs, FloatTable, LinearWeight, OpSet, Table, Value, Vector


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


@dataclass(frozen=True)
class LlamaLayer:
    """One decoder layer. qkv: q, k and v stacked; gate_up: gate and up stacked."""

    input_norm: Vector
    qkv: LinearWeight
    qkv_bias: Vector | None
    head_norm: HeadNorm | None
    o: LinearWeight
    o_bias: Vector | None
    mlp_norm: Vector
    gate_up: LinearWeight
    gate_up_bias: Vector | None
    down: LinearWeight
    down_bias: Vector | None


@dataclass(frozen=True)
class LlamaWeights:
    """All weights; rope: [positions, rotary_dim] cosines, then sines."""

    embed: Table
    layers: tuple[LlamaLayer, ...]
    norm: Vector
    lm_head: LinearWeight
    rope: FloatTable


@dataclass(frozen=True)
class Llama:
    """A loaded model."""

    family: ClassVar[str] = "llama"
    hf_architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("llama",)
    base_prefix: ClassVar[str] = "model."
    ignored_suffixes: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq", "lm_head.weight")  # a tied head's

    config: LlamaConfig
    weights: LlamaWeights

    def forward(self, op: OpSet, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""
        c, w = self.config, self.weights
        x = op.embedding(batch.token_ids, w.embed)
        for index, layer in enumerate(w.layers):
            h = op.rms_norm(x, layer.input_norm, c.rms_norm_eps)
            a = op.attention(
                op.linear(h, layer.qkv, layer.qkv_bias),
                index,
                num_heads=c.num_heads,
                num_kv_heads=c.num_kv_heads,
                head_dim=c.head_dim,
                scale=c.head_dim**-0.5,
                rope=w.rope,
                head_norm=layer.head_norm,
                window=c.windows[index],
            )
            x = op.all_reduce(op.linear(a, layer.o, layer.o_bias), add=x)
            h = op.rms_norm(x, layer.mlp_norm, c.rms_norm_eps)
            g = op.gated_activation(op.linear(h, layer.gate_up, layer.gate_up_bias), "silu")
            x = op.all_reduce(op.linear(g, layer.down, layer.down_bias), add=x)
        h = op.rms_norm(op.rows(x, batch.sample_rows), w.norm, c.rms_norm_eps)
        return op.linear(h, w.lm_head)

    @classmethod
    def config_from_hf(cls, keys: Keys) -> LlamaConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        keys.only("hidden_act", None, "silu")
        sizes = hf_sizes(keys)
        attention_bias = keys.boolean("attention_bias", False)
        return LlamaConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("intermediate_size"),
            rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
            rope=rope_from_hf(keys, sizes),
            windows=(0,) * sizes["num_layers"],
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=keys.boolean("mlp_bias", False),
        )

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> LlamaConfig:
        """From a GGUF file's metadata; whether there are biases is seen from the tensors."""
        sizes = gguf_sizes(keys, tensor_names)
        name = keys.string("general.architecture")
        return LlamaConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer(f"{name}.feed_forward_length"),
            rms_norm_eps=keys.number(f"{name}.attention.layer_norm_rms_epsilon"),
            rope=rope_from_gguf(keys, sizes),
            windows=(0,) * sizes["num_layers"],
            qkv_bias="blk.0.attn_q.bias" in tensor_names,
            output_bias="blk.0.attn_output.bias" in tensor_names,
            mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        )

    @classmethod
    def load(cls, config: LlamaConfig, source: WeightSource, max_model_len: int) -> Llama:
        """max_model_len: how many positions the rotary table holds."""
        embed = source.table("model.embed_tokens.weight")
        layers = tuple(cls._load_layer(config, source, f"model.layers.{i}.") for i in range(config.num_layers))
        norm = source.vector("model.norm.weight")
        head = source.linear("model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight")
        return cls(config, LlamaWeights(embed, layers, norm, head, rotary_table(max_model_len, config.rope)))

    @staticmethod
    def weight_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        linears = {
            "self_attn.q_proj": (q_size, c.hidden_size, c.qkv_bias),
            "self_attn.k_proj": (kv_size, c.hidden_size, c.qkv_bias),
            "self_attn.v_proj": (kv_size, c.hidden_size, c.qkv_bias),
            "self_attn.o_proj": (c.hidden_size, q_size, c.output_bias),
            "mlp.gate_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
            "mlp.up_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
            "mlp.down_proj": (c.hidden_size, c.intermediate_size, c.mlp_bias),
        }
        norms = {"input_layernorm": c.hidden_size, "post_attention_layernorm": c.hidden_size}
        if c.qk_norm:
            norms |= {"self_attn.q_norm": c.head_dim, "self_attn.k_norm": c.head_dim}
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
        for prefix in (f"model.layers.{i}." for i in range(c.num_layers)):
            for name, (rows, cols, has_bias) in linears.items():
                shapes[f"{prefix}{name}.weight"] = (rows, cols)
                if has_bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
            shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        shapes["model.norm.weight"] = (c.hidden_size,)
        if not c.tie_word_embeddings:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes

    @staticmethod
    def gguf_names(config: LlamaConfig) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it."""
        return decoder_gguf_names(
            config, {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}
        )

    @classmethod
    def _load_layer(cls, config: LlamaConfig, source: WeightSource, prefix: str) -> LlamaLayer:
        def linear(*names: str) -> LinearWeight:
            return source.linear(*(f"{prefix}{name}.weight" for name in names))

        def bias(present: bool, *names: str) -> Vector | None:
            return source.vector(*(f"{prefix}{name}.bias" for name in names)) if present else None

        def norm(name: str) -> Vector:
            return source.vector(f"{prefix}{name}.weight")

        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        head_norm = None
        if config.qk_norm:
            head_norm = HeadNorm(norm("self_attn.q_norm"), norm("self_attn.k_norm"), config.rms_norm_eps)
        return LlamaLayer(
            input_norm=norm("input_layernorm"),
            qkv=linear(*qkv),
            qkv_bias=bias(config.qkv_bias, *qkv),
            head_norm=head_norm,
            o=linear("self_attn.o_proj"),
            o_bias=bias(config.output_bias, "self_attn.o_proj"),
            mlp_norm=norm("post_attention_layernorm"),
            gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
            gate_up_bias=bias(config.mlp_bias, "mlp.gate_proj", "mlp.up_proj"),
            down=linear("mlp.down_proj"),
            down_bias=bias(config.mlp_bias, "mlp.down_proj"),
        )


def decoder_gguf_names(config: ModelConfig, permuted_heads: dict[str, int]) -> dict[str, GgufName]:
    """permuted_heads: of which projections the converter reorders the rows, and within how many heads."""
    names = {
        "model.embed_tokens.weight": GgufName("token_embd.weight"),
        "model.norm.weight": GgufName("output_norm.weight"),
        "lm_head.weight": GgufName("output.weight"),
    }
    for i in range(config.num_layers):
        for part, gguf in _GGUF_LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                names[f"model.layers.{i}.{part}.{kind}"] = GgufName(f"blk.{i}.{gguf}.{kind}", permuted_heads.get(part))
    return names


_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
