"""Falcon: fused q, k and v with one KV head for all, for some or for each query head; attention and MLP side by side.

falcon-7b has one KV head and one norm a layer, the newer ones (40b, 180b, 11b) several KV heads and two norms or one,
falcon-rw ALiBi, biases and the order of GPT-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.config import ModelConfig
from fastpaged.models.activations import activation_from_hf
from fastpaged.models.alibi import alibi_slopes
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
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import (
        ActivationKind,
        BatchInputs,
        FloatTable,
        LinearWeight,
        OpSet,
        Table,
        Value,
        Vector,
    )


@dataclass(frozen=True)
class FalconConfig(ModelConfig):
    """rope: None with ALiBi. attention_norm, mlp_norm: what they are called; where they are one, both read its output.

    parallel: the MLP reads what attention reads, not what attention has added to it.
    """

    intermediate_size: int
    layer_norm_eps: float
    activation: ActivationKind
    rope: Rope | None
    parallel: bool
    attention_norm: str
    mlp_norm: str
    has_bias: bool

    @property
    def table_bytes_per_position(self) -> int:
        """Of the rotary table, if there is one."""
        return 0 if self.rope is None else self.rope.bytes_per_position


@dataclass(frozen=True)
class FalconWeights:
    """rope: [positions, head_dim] cosines, then sines. slopes: [num_heads]. One of the two."""

    embed: Table
    layers: tuple[LayerNormBlock, ...]
    norm: LayerNorm
    lm_head: LinearWeight
    rope: FloatTable | None
    slopes: Vector | None


@dataclass(frozen=True)
class Falcon:
    """A loaded model."""

    family: ClassVar[str] = "falcon"
    hf_architectures: ClassVar[tuple[str, ...]] = ("FalconForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("falcon",)
    base_prefix: ClassVar[str] = "transformer."
    embedding_name: ClassVar[str] = "transformer.word_embeddings.weight"
    head_name: ClassVar[str] = "lm_head.weight"
    ignored_suffixes: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)

    config: FalconConfig
    weights: FalconWeights

    def forward(self, op: OpSet, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""
        c, w = self.config, self.weights
        x = op.embedding(batch.token_ids, w.embed)
        for index, layer in enumerate(w.layers):
            h = op.layer_norm(x, *layer.attention_norm)
            a = self._attention(op, h, layer, index)
            if c.parallel:
                h = h if c.mlp_norm == c.attention_norm else op.layer_norm(x, *layer.mlp_norm)
                x = op.all_reduce(op.add(self._mlp(op, h, layer), a), add=x)
            else:
                x = op.all_reduce(a, add=x)
                x = op.all_reduce(self._mlp(op, op.layer_norm(x, *layer.mlp_norm), layer), add=x)
        return op.linear(op.layer_norm(op.rows(x, batch.sample_rows), *w.norm), w.lm_head)

    def _attention(self, op: OpSet, h: Value, layer: LayerNormBlock, index: int) -> Value:
        c, w = self.config, self.weights
        a = op.attention(
            op.linear(h, *layer.qkv),
            index,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            scale=c.head_dim**-0.5,
            rope=w.rope,
            alibi_slopes=w.slopes,
        )
        return op.linear(a, *layer.o)

    def _mlp(self, op: OpSet, h: Value, layer: LayerNormBlock) -> Value:
        return op.linear(op.linear(h, *layer.up, self.config.activation), *layer.down)

    @classmethod
    def config_from_hf(cls, keys: Keys) -> FalconConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        sizes = hf_sizes(keys, tied=True, grouped=False)
        num_heads = sizes["num_heads"]
        sizes["head_dim"] = whole_head_dim(keys, "num_attention_heads", sizes["hidden_size"], num_heads)
        is_new = keys.boolean("new_decoder_architecture", False)
        if is_new:
            sizes["num_kv_heads"] = keys.integer("num_kv_heads", num_heads)
            keys.only("parallel_attn", None, True)
        else:
            sizes["num_kv_heads"] = 1 if keys.boolean("multi_query", True) else num_heads
        parallel = is_new or keys.boolean("parallel_attn", True)
        norms = keys.integer("num_ln_in_parallel_attn", 2 if is_new else 1, limits=(1, 2 if is_new else 1))
        rope = None if keys.boolean("alibi", False) else rope_from_hf(keys, sizes)
        if rope is not None:
            sizes["max_position_embeddings"] = reached_positions(rope, sizes)
        return FalconConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("ffn_hidden_size", 4 * sizes["hidden_size"]),
            layer_norm_eps=keys.number("layer_norm_epsilon", 1e-5),
            activation=activation_from_hf(keys, "activation", "gelu"),
            rope=rope,
            parallel=parallel,
            attention_norm="ln_attn" if norms == 2 else "input_layernorm",
            mlp_norm="ln_mlp" if norms == 2 else "input_layernorm" if parallel else "post_attention_layernorm",
            has_bias=keys.boolean("bias", False),
        )

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> FalconConfig:
        """From a GGUF file's metadata. Such files know neither ALiBi nor biases."""
        keys.only("falcon.tensor_data_layout", "jploski")
        sizes = gguf_sizes(keys, tensor_names)
        rope = rope_from_gguf(keys, sizes, tensor_names)
        sizes["max_position_embeddings"] = reached_positions(rope, sizes)
        two_norms = "blk.0.attn_norm_2.weight" in tensor_names
        return FalconConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("falcon.feed_forward_length"),
            layer_norm_eps=keys.number("falcon.attention.layer_norm_epsilon"),
            activation="gelu",
            rope=rope,
            parallel=True,
            attention_norm="ln_attn" if two_norms else "input_layernorm",
            mlp_norm="ln_mlp" if two_norms else "input_layernorm",
            has_bias=False,
        )

    @classmethod
    def load(cls, config: FalconConfig, source: WeightSource, max_model_len: int) -> Falcon:
        """max_model_len: how many positions the rotary table holds."""
        c = config
        embed = source.table(cls.embedding_name)
        layers = tuple(_load_layer(c, source, f"transformer.h.{i}.") for i in range(c.num_layers))
        norm = load_norm(source, "transformer.ln_f", c.layer_norm_eps)
        head = source.linear(cls.embedding_name if c.tie_word_embeddings else cls.head_name)
        rope = None if c.rope is None else rotary_table(max_model_len, c.rope, source)
        slopes = alibi_slopes(c.num_heads, c.head_dim**-0.5) if c.rope is None else None
        return cls(c, FalconWeights(embed, layers, norm, head, rope, slopes))

    @staticmethod
    def weight_shapes(config: FalconConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        shapes: dict[str, tuple[int, ...]] = {"transformer.word_embeddings.weight": (c.vocab_size, c.hidden_size)}
        linears = {
            "self_attention.query_key_value": ((c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.hidden_size),
            "self_attention.dense": (c.hidden_size, c.hidden_size),
            "mlp.dense_h_to_4h": (c.intermediate_size, c.hidden_size),
            "mlp.dense_4h_to_h": (c.hidden_size, c.intermediate_size),
        }
        norms = ["transformer.ln_f"]
        for prefix in (f"transformer.h.{i}." for i in range(c.num_layers)):
            norms += [prefix + c.attention_norm, prefix + c.mlp_norm]
            for name, shape in linears.items():
                shapes[f"{prefix}{name}.weight"] = shape
                if c.has_bias:
                    shapes[f"{prefix}{name}.bias"] = shape[:1]
        for norm in norms:
            shapes |= {f"{norm}.weight": (c.hidden_size,), f"{norm}.bias": (c.hidden_size,)}
        if not c.tie_word_embeddings:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes if c.rope is None else shapes | c.rope.tensors

    @staticmethod
    def gguf_names(config: FalconConfig) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it: all q, then k, then v in the fused matrix."""
        names = {
            "transformer.word_embeddings.weight": GgufName("token_embd.weight"),
            "transformer.ln_f.weight": GgufName("output_norm.weight"),
            "transformer.ln_f.bias": GgufName("output_norm.bias"),
            "lm_head.weight": GgufName("output.weight"),
        }
        qkv_rows = grouped_qkv_rows(config.num_heads, config.num_kv_heads, config.head_dim)
        norms = {config.attention_norm: "attn_norm"}
        if config.mlp_norm != config.attention_norm:
            norms = {config.mlp_norm: "attn_norm", config.attention_norm: "attn_norm_2"}
        for i in range(config.num_layers):
            for part, gguf in (_GGUF_LINEAR_NAMES | norms).items():
                rows = qkv_rows if gguf == "attn_qkv" else None
                for kind in ("weight", "bias"):
                    names[f"transformer.h.{i}.{part}.{kind}"] = GgufName(f"blk.{i}.{gguf}.{kind}", rows=rows)
        return names


_GGUF_LINEAR_NAMES = {
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def _load_layer(config: FalconConfig, source: WeightSource, prefix: str) -> LayerNormBlock:
    c = config
    rows = grouped_qkv_rows(c.num_heads, c.num_kv_heads, c.head_dim)
    return LayerNormBlock(
        attention_norm=load_norm(source, prefix + c.attention_norm, c.layer_norm_eps),
        qkv=load_linear(source, prefix + "self_attention.query_key_value", has_bias=c.has_bias, rows=rows),
        o=load_linear(source, prefix + "self_attention.dense", has_bias=c.has_bias),
        mlp_norm=load_norm(source, prefix + c.mlp_norm, c.layer_norm_eps),
        up=load_linear(source, prefix + "mlp.dense_h_to_4h", has_bias=c.has_bias),
        down=load_linear(source, prefix + "mlp.dense_4h_to_h", has_bias=c.has_bias),
    )
