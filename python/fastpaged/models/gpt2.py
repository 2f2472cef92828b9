"""GPT-2: learned positions, layer norms before attention and MLP, biases; weights are stored as [in, out]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.config import ModelConfig
from fastpaged.config.model_config import LAYER_LIMITS, POSITION_LIMITS
from fastpaged.models.activations import activation_from_hf
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.layer_norm_block import (
    LayerNorm,
    LayerNormBlock,
    load_linear,
    load_norm,
    whole_head_dim,
)
from fastpaged.models.sizes import gguf_sizes

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import ActivationKind, BatchInputs, FloatTable, LinearWeight, OpSet, Table, Value


@dataclass(frozen=True)
class Gpt2Config(ModelConfig):
    """scales: of the scores, layer by layer."""

    intermediate_size: int
    layer_norm_eps: float
    activation: ActivationKind
    scales: tuple[float, ...]


@dataclass(frozen=True)
class Gpt2Weights:
    """positions: [max_position_embeddings, hidden]."""

    embed: Table
    positions: FloatTable
    layers: tuple[LayerNormBlock, ...]
    norm: LayerNorm
    lm_head: LinearWeight


@dataclass(frozen=True)
class Gpt2:
    """A loaded model."""

    family: ClassVar[str] = "gpt2"
    hf_architectures: ClassVar[tuple[str, ...]] = ("GPT2LMHeadModel",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("gpt2",)
    base_prefix: ClassVar[str] = "transformer."
    embedding_name: ClassVar[str] = "transformer.wte.weight"
    head_name: ClassVar[str] = "lm_head.weight"
    ignored_suffixes: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")  # masks

    config: Gpt2Config
    weights: Gpt2Weights

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
                scale=c.scales[index],
            )
            x = op.all_reduce(op.linear(a, *layer.o), add=x)
            h = op.linear(op.layer_norm(x, *layer.mlp_norm), *layer.up, c.activation)
            x = op.all_reduce(op.linear(h, *layer.down), add=x)
        return op.linear(op.layer_norm(op.rows(x, batch.sample_rows), *w.norm), w.lm_head)

    @classmethod
    def config_from_hf(cls, keys: Keys) -> Gpt2Config:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        keys.only("add_cross_attention", None, False)
        hidden_size, num_heads = keys.integer("n_embd"), keys.integer("n_head")
        head_dim = whole_head_dim(keys, "n_head", hidden_size, num_heads)
        num_layers = keys.integer("n_layer", limits=LAYER_LIMITS)
        scale = head_dim**-0.5 if keys.boolean("scale_attn_weights", True) else 1.0
        by_layer = keys.boolean("scale_attn_by_inverse_layer_idx", False)
        return Gpt2Config(
            cls.family,
            vocab_size=keys.integer("vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_position_embeddings=keys.integer("n_positions", 1024, limits=POSITION_LIMITS),
            tie_word_embeddings=keys.boolean("tie_word_embeddings", True),
            intermediate_size=keys.integer("n_inner", 4 * hidden_size),
            layer_norm_eps=keys.number("layer_norm_epsilon", 1e-5),
            activation=activation_from_hf(keys, "activation_function", "gelu_new"),
            scales=tuple(scale / (i + 1) if by_layer else scale for i in range(num_layers)),
        )

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> Gpt2Config:
        """From a GGUF file's metadata."""
        sizes = gguf_sizes(keys, tensor_names)
        return Gpt2Config(
            cls.family,
            **sizes,
            intermediate_size=keys.integer("gpt2.feed_forward_length"),
            layer_norm_eps=keys.number("gpt2.attention.layer_norm_epsilon"),
            activation="gelu_tanh",
            scales=(sizes["head_dim"] ** -0.5,) * sizes["num_layers"],
        )

    @classmethod
    def load(cls, config: Gpt2Config, source: WeightSource, max_model_len: int) -> Gpt2:
        """max_model_len: at most the positions there are."""
        embed = source.table(cls.embedding_name)
        positions = source.float_table("transformer.wpe.weight")
        layers = tuple(_load_layer(config, source, f"transformer.h.{i}.") for i in range(config.num_layers))
        norm = load_norm(source, "transformer.ln_f", config.layer_norm_eps)
        head = source.linear(cls.embedding_name if config.tie_word_embeddings else cls.head_name)
        return cls(config, Gpt2Weights(embed, positions, layers, norm, head))

    @staticmethod
    def weight_shapes(config: Gpt2Config) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        shapes: dict[str, tuple[int, ...]] = {
            "transformer.wte.weight": (c.vocab_size, c.hidden_size),
            "transformer.wpe.weight": (c.max_position_embeddings, c.hidden_size),
        }
        linears = {
            "attn.c_attn": (c.hidden_size, 3 * c.hidden_size),
            "attn.c_proj": (c.hidden_size, c.hidden_size),
            "mlp.c_fc": (c.hidden_size, c.intermediate_size),
            "mlp.c_proj": (c.intermediate_size, c.hidden_size),
        }
        norms = [f"transformer.h.{i}.{name}" for i in range(c.num_layers) for name in ("ln_1", "ln_2")]
        for norm in [*norms, "transformer.ln_f"]:
            shapes |= {f"{norm}.weight": (c.hidden_size,), f"{norm}.bias": (c.hidden_size,)}
        for i in range(c.num_layers):
            for name, shape in linears.items():
                shapes |= {f"transformer.h.{i}.{name}.weight": shape, f"transformer.h.{i}.{name}.bias": shape[1:]}
        if not c.tie_word_embeddings:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes

    @staticmethod
    def gguf_names(config: Gpt2Config) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it."""
        names = {
            "transformer.wte.weight": GgufName("token_embd.weight"),
            "transformer.wpe.weight": GgufName("position_embd.weight"),
            "transformer.ln_f.weight": GgufName("output_norm.weight"),
            "transformer.ln_f.bias": GgufName("output_norm.bias"),
            "lm_head.weight": GgufName("output.weight"),
        }
        for i in range(config.num_layers):
            for part, gguf in _GGUF_LAYER_NAMES.items():
                is_linear = not part.startswith("ln_")
                names[f"transformer.h.{i}.{part}.weight"] = GgufName(f"blk.{i}.{gguf}.weight", transposed=is_linear)
                names[f"transformer.h.{i}.{part}.bias"] = GgufName(f"blk.{i}.{gguf}.bias")
        return names


_GGUF_LAYER_NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def _load_layer(config: Gpt2Config, source: WeightSource, prefix: str) -> LayerNormBlock:
    return LayerNormBlock(
        attention_norm=load_norm(source, prefix + "ln_1", config.layer_norm_eps),
        qkv=load_linear(source, prefix + "attn.c_attn", transposed=True),
        o=load_linear(source, prefix + "attn.c_proj", transposed=True),
        mlp_norm=load_norm(source, prefix + "ln_2", config.layer_norm_eps),
        up=load_linear(source, prefix + "mlp.c_fc", transposed=True),
        down=load_linear(source, prefix + "mlp.c_proj", transposed=True),
    )
