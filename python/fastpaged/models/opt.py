"""OPT: learned positions, layer norms before attention and MLP, biases, ReLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.config import ModelConfig
from fastpaged.errors import ModelFormatError
from fastpaged.models.activations import activation_from_hf
from fastpaged.models.layer_norm_block import (
    LayerNorm,
    LayerNormBlock,
    load_linear,
    load_norm,
    whole_head_dim,
)
from fastpaged.models.sizes import hf_sizes

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.gguf_name import GgufName
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import ActivationKind, BatchInputs, FloatTable, LinearWeight, OpSet, Table, Value

_EPS = 1e-5  # no key says it
_FIRST_POSITION = 2  # rows of the table of positions before that of position 0


@dataclass(frozen=True)
class OptConfig(ModelConfig):
    """has_bias: of the linear layers."""

    intermediate_size: int
    activation: ActivationKind
    has_bias: bool


@dataclass(frozen=True)
class OptWeights:
    """positions: [max_position_embeddings, hidden]."""

    embed: Table
    positions: FloatTable
    layers: tuple[LayerNormBlock, ...]
    norm: LayerNorm
    lm_head: LinearWeight


@dataclass(frozen=True)
class Opt:
    """A loaded model."""

    family: ClassVar[str] = "opt"
    hf_architectures: ClassVar[tuple[str, ...]] = ("OPTForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ()  # llama.cpp has no OPT
    base_prefix: ClassVar[str] = "model."
    embedding_name: ClassVar[str] = "model.decoder.embed_tokens.weight"
    head_name: ClassVar[str] = "lm_head.weight"
    ignored_suffixes: ClassVar[tuple[str, ...]] = ()

    config: OptConfig
    weights: OptWeights

    def forward(self, op: OpSet, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""
        c, w = self.config, self.weights
        x = op.embedding(batch.token_ids, w.embed, position_table=w.positions)
        for index, layer in enumerate(w.layers):
            qkv = op.linear(op.layer_norm(x, *layer.attention_norm), *layer.qkv)
            a = op.attention(
                qkv,
                index,
                num_heads=c.num_heads,
                num_kv_heads=c.num_kv_heads,
                head_dim=c.head_dim,
                scale=c.head_dim**-0.5,
            )
            x = op.all_reduce(op.linear(a, *layer.o), add=x)
            h = op.linear(op.layer_norm(x, *layer.mlp_norm), *layer.up, c.activation)
            x = op.all_reduce(op.linear(h, *layer.down), add=x)
        return op.linear(op.layer_norm(op.rows(x, batch.sample_rows), *w.norm), w.lm_head)

    @classmethod
    def config_from_hf(cls, keys: Keys) -> OptConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        sizes = hf_sizes(keys, tied=True, grouped=False)
        sizes["head_dim"] = whole_head_dim(keys, "num_attention_heads", sizes["hidden_size"], sizes["num_heads"])
        keys.only("do_layer_norm_before", None, True, why="norms behind attention and MLP are not supported")
        keys.only("_remove_final_layer_norm", None, False)
        keys.only("layer_norm_elementwise_affine", None, True)
        keys.only("word_embed_proj_dim", None, sizes["hidden_size"], why="projected embeddings are not supported")
        return OptConfig(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("ffn_dim"),
            activation=activation_from_hf(keys, "activation_function", "relu"),
            has_bias=keys.boolean("enable_bias", True),
        )

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> OptConfig:
        """Nothing writes OPT models as GGUF."""
        raise ModelFormatError(f"{keys.source}: no file of this format holds an OPT model")

    @classmethod
    def load(cls, config: OptConfig, source: WeightSource, max_model_len: int) -> Opt:
        """max_model_len: at most the positions there are."""
        embed = source.table(cls.embedding_name)
        positions = source.float_table("model.decoder.embed_positions.weight")[_FIRST_POSITION:]
        layers = tuple(_load_layer(config, source, f"model.decoder.layers.{i}.") for i in range(config.num_layers))
        norm = load_norm(source, "model.decoder.final_layer_norm", _EPS)
        head = source.linear(cls.embedding_name if config.tie_word_embeddings else cls.head_name)
        return cls(config, OptWeights(embed, positions, layers, norm, head))

    @staticmethod
    def weight_shapes(config: OptConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        shapes: dict[str, tuple[int, ...]] = {
            "model.decoder.embed_tokens.weight": (c.vocab_size, c.hidden_size),
            "model.decoder.embed_positions.weight": (c.max_position_embeddings + _FIRST_POSITION, c.hidden_size),
        }
        linears = dict.fromkeys((f"self_attn.{name}" for name in _ATTENTION), (c.hidden_size, c.hidden_size))
        linears |= {"fc1": (c.intermediate_size, c.hidden_size), "fc2": (c.hidden_size, c.intermediate_size)}
        norms = ["model.decoder.final_layer_norm"]
        for prefix in (f"model.decoder.layers.{i}." for i in range(c.num_layers)):
            norms += [prefix + "self_attn_layer_norm", prefix + "final_layer_norm"]
            for name, shape in linears.items():
                shapes[f"{prefix}{name}.weight"] = shape
                if c.has_bias:
                    shapes[f"{prefix}{name}.bias"] = shape[:1]
        for norm in norms:
            shapes |= {f"{norm}.weight": (c.hidden_size,), f"{norm}.bias": (c.hidden_size,)}
        if not c.tie_word_embeddings:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes

    @staticmethod
    def gguf_names(config: OptConfig) -> dict[str, GgufName]:
        """None: see config_from_gguf."""
        return {}


_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")


def _load_layer(config: OptConfig, source: WeightSource, prefix: str) -> LayerNormBlock:
    q, k, v, o = (f"{prefix}self_attn.{name}" for name in _ATTENTION)
    return LayerNormBlock(
        attention_norm=load_norm(source, prefix + "self_attn_layer_norm", _EPS),
        qkv=load_linear(source, q, k, v, has_bias=config.has_bias),
        o=load_linear(source, o, has_bias=config.has_bias),
        mlp_norm=load_norm(source, prefix + "final_layer_norm", _EPS),
        up=load_linear(source, prefix + "fc1", has_bias=config.has_bias),
        down=load_linear(source, prefix + "fc2", has_bias=config.has_bias),
    )
