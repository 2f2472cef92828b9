"""GPT-NeoX (Pythia): attention and MLP side by side, a part of each head rotated, fused q, k and v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.config import ModelConfig
from fastpaged.models.activations import activation_from_hf
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.layer_norm_block import (
    LayerNorm,
    LayerNormBlock,
    grouped_qkv_rows,
    load_linear,
    load_norm,
    whole_head_dim,
)
from fastpaged.models.rope import Rope, reached_positions, rope_from_gguf, rope_from_hf
from fastpaged.models.rotary import rotary_table
from fastpaged.models.sizes import gguf_sizes, hf_sizes

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.sizes import Sizes
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import ActivationKind, BatchInputs, FloatTable, LinearWeight, OpSet, Table, Value


@dataclass(frozen=True)
class GptNeoxConfig(ModelConfig):
    """parallel_residual: the MLP reads what attention reads, not what attention has added to it."""

    intermediate_size: int
    layer_norm_eps: float
    activation: ActivationKind
    rope: Rope
    parallel_residual: bool
    attention_bias: bool

    @property
    def table_bytes_per_position(self) -> int:
        """Of the rotary table."""
        return self.rope.bytes_per_position


@dataclass(frozen=True)
class GptNeoxWeights:
    """rope: [positions, rotary_dim] cosines, then sines."""

    embed: Table
    layers: tuple[LayerNormBlock, ...]
    norm: LayerNorm
    lm_head: LinearWeight
    rope: FloatTable


@dataclass(frozen=True)
class GptNeox:
    """A loaded model."""

    family: ClassVar[str] = "gpt_neox"
    hf_architectures: ClassVar[tuple[str, ...]] = ("GPTNeoXForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("gptneox",)
    base_prefix: ClassVar[str] = "gpt_neox."
    embedding_name: ClassVar[str] = "gpt_neox.embed_in.weight"
    head_name: ClassVar[str] = "embed_out.weight"
    ignored_suffixes: ClassVar[tuple[str, ...]] = (  # masks and frequencies
        ".attention.bias",
        ".attention.masked_bias",
        ".rotary_emb.inv_freq",
    )

    config: GptNeoxConfig
    weights: GptNeoxWeights

    def forward(self, op: OpSet, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""
        c, w = self.config, self.weights
        x = op.embedding(batch.token_ids, w.embed)
        for index, layer in enumerate(w.layers):
            a = self._attention(op, x, layer, index)
            if c.parallel_residual:
                x = op.all_reduce(op.add(self._mlp(op, x, layer), a), add=x)
            else:
                x = op.all_reduce(a, add=x)
                x = op.all_reduce(self._mlp(op, x, layer), add=x)
        return op.linear(op.layer_norm(op.rows(x, batch.sample_rows), *w.norm), w.lm_head)

    def _attention(self, op: OpSet, x: Value, layer: LayerNormBlock, index: int) -> Value:
        c = self.config
        a = op.attention(
            op.linear(op.layer_norm(x, *layer.attention_norm), *layer.qkv),
            index,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            scale=c.head_dim**-0.5,
            rope=self.weights.rope,
        )
        return op.linear(a, *layer.o)

    def _mlp(self, op: OpSet, x: Value, layer: LayerNormBlock) -> Value:
        h = op.linear(op.layer_norm(x, *layer.mlp_norm), *layer.up, self.config.activation)
        return op.linear(h, *layer.down)

    @classmethod
    def config_from_hf(cls, keys: Keys) -> GptNeoxConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        sizes = hf_sizes(keys, grouped=False)
        head_dim = whole_head_dim(keys, "num_attention_heads", sizes["hidden_size"], sizes["num_heads"])
        rope = _rope_from_hf(keys, sizes)  # a share of the key head_dim, which means nothing else to `transformers`
        if rope.rotary_dim > head_dim:
            raise keys.error("head_dim", f"such that no more than {head_dim}, a whole head, is rotated")
        sizes["head_dim"] = head_dim
        sizes["max_position_embeddings"] = reached_positions(rope, sizes)
        return GptNeoxConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("intermediate_size"),
            layer_norm_eps=keys.number("layer_norm_eps", 1e-5),
            activation=activation_from_hf(keys, "hidden_act", "gelu"),
            rope=rope,
            parallel_residual=keys.boolean("use_parallel_residual", True),
            attention_bias=keys.boolean("attention_bias", True),
        )

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> GptNeoxConfig:
        """From a GGUF file's metadata."""
        sizes = gguf_sizes(keys, tensor_names)
        rope = rope_from_gguf(keys, sizes, tensor_names)
        sizes["max_position_embeddings"] = reached_positions(rope, sizes)
        return GptNeoxConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("gptneox.feed_forward_length"),
            layer_norm_eps=keys.number("gptneox.attention.layer_norm_epsilon"),
            activation="gelu",
            rope=rope,
            parallel_residual=keys.boolean("gptneox.use_parallel_residual", True),
            attention_bias="blk.0.attn_qkv.bias" in tensor_names,
        )

    @classmethod
    def load(cls, config: GptNeoxConfig, source: WeightSource, max_model_len: int) -> GptNeox:
        """max_model_len: how many positions the rotary table holds."""
        embed = source.table(cls.embedding_name)
        layers = tuple(_load_layer(config, source, f"gpt_neox.layers.{i}.") for i in range(config.num_layers))
        norm = load_norm(source, "gpt_neox.final_layer_norm", config.layer_norm_eps)
        head = source.linear(cls.embedding_name if config.tie_word_embeddings else cls.head_name)
        rope = rotary_table(max_model_len, config.rope, source)
        return cls(config, GptNeoxWeights(embed, layers, norm, head, rope))

    @staticmethod
    def weight_shapes(config: GptNeoxConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        shapes: dict[str, tuple[int, ...]] = {"gpt_neox.embed_in.weight": (c.vocab_size, c.hidden_size)}
        linears = {
            "attention.query_key_value": (3 * c.hidden_size, c.hidden_size, c.attention_bias),
            "attention.dense": (c.hidden_size, c.hidden_size, c.attention_bias),
            "mlp.dense_h_to_4h": (c.intermediate_size, c.hidden_size, True),
            "mlp.dense_4h_to_h": (c.hidden_size, c.intermediate_size, True),
        }
        norms = ["gpt_neox.final_layer_norm"]
        for prefix in (f"gpt_neox.layers.{i}." for i in range(c.num_layers)):
            norms += [prefix + "input_layernorm", prefix + "post_attention_layernorm"]
            for name, (rows, cols, has_bias) in linears.items():
                shapes[f"{prefix}{name}.weight"] = (rows, cols)
                if has_bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
        for norm in norms:
            shapes |= {f"{norm}.weight": (c.hidden_size,), f"{norm}.bias": (c.hidden_size,)}
        if not c.tie_word_embeddings:
            shapes["embed_out.weight"] = (c.vocab_size, c.hidden_size)
        return shapes | c.rope.tensors

    @staticmethod
    def gguf_names(config: GptNeoxConfig) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it: all q, then k, then v in the fused matrix."""
        names = {
            "gpt_neox.embed_in.weight": GgufName("token_embd.weight"),
            "gpt_neox.final_layer_norm.weight": GgufName("output_norm.weight"),
            "gpt_neox.final_layer_norm.bias": GgufName("output_norm.bias"),
            "embed_out.weight": GgufName("output.weight"),
        }
        qkv_rows = grouped_qkv_rows(config.num_heads, config.num_kv_heads, config.head_dim)
        for i in range(config.num_layers):
            for part, gguf in _GGUF_LAYER_NAMES.items():
                rows = qkv_rows if gguf == "attn_qkv" else None
                for kind in ("weight", "bias"):
                    names[f"gpt_neox.layers.{i}.{part}.{kind}"] = GgufName(f"blk.{i}.{gguf}.{kind}", rows=rows)
        return names


def _rope_from_hf(keys: Keys, sizes: Sizes) -> Rope:
    """The older spelling has names of its own; a quarter of each head is rotated where nothing says how much."""
    theta, share = keys.number("rotary_emb_base", 10000.0), keys.number("rotary_pct", 0.25)
    return rope_from_hf(keys, sizes, theta=theta, share=share)


_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def _load_layer(config: GptNeoxConfig, source: WeightSource, prefix: str) -> LayerNormBlock:
    c = config
    rows = grouped_qkv_rows(c.num_heads, c.num_kv_heads, c.head_dim)
    return LayerNormBlock(
        attention_norm=load_norm(source, prefix + "input_layernorm", c.layer_norm_eps),
        qkv=load_linear(source, prefix + "attention.query_key_value", has_bias=c.attention_bias, rows=rows),
        o=load_linear(source, prefix + "attention.dense", has_bias=c.attention_bias),
        mlp_norm=load_norm(source, prefix + "post_attention_layernorm", c.layer_norm_eps),
        up=load_linear(source, prefix + "mlp.dense_h_to_4h"),
        down=load_linear(source, prefix + "mlp.dense_4h_to_h"),
    )
