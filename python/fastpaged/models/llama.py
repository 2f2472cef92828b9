"""The Llama family: RMS norm, rotary positions, grouped-query attention, a SiLU-gated MLP.

Mistral, Qwen and Phi-3 are nearly the same: their files say what differs, in a LlamaConfig and in names of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.models.gguf_name import GgufName
from fastpaged.models.llama_config import LlamaConfig, llama_from_gguf, llama_from_hf
from fastpaged.models.rotary import rotary_table
from fastpaged.ops.op_set import HeadNorm

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import BatchInputs, FloatTable, GatedWeight, LinearWeight, OpSet, Table, Value, Vector


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
    gate_up: GatedWeight
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
    embedding_name: ClassVar[str] = "model.embed_tokens.weight"
    head_name: ClassVar[str] = "lm_head.weight"
    ignored_suffixes: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)
    qkv_names: ClassVar[tuple[str, ...]] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up_names: ClassVar[tuple[str, ...]] = ("mlp.gate_proj", "mlp.up_proj")
    is_permuted_in_gguf: ClassVar[bool] = True  # see GgufName.permuted_heads

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
            g = op.gated_linear(h, layer.gate_up, layer.gate_up_bias, "silu")
            x = op.all_reduce(op.linear(g, layer.down, layer.down_bias), add=x)
        h = op.rms_norm(op.rows(x, batch.sample_rows), w.norm, c.rms_norm_eps)
        return op.linear(h, w.lm_head)

    @classmethod
    def config_from_hf(cls, keys: Keys) -> LlamaConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        bias = keys.boolean("attention_bias", False)
        mlp_bias = keys.boolean("mlp_bias", False)
        return llama_from_hf(cls.family, keys, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> LlamaConfig:
        """From a GGUF file's metadata; whether there are biases is seen from the tensors."""
        return llama_from_gguf(cls.family, keys, tensor_names)

    @classmethod
    def load(cls, config: LlamaConfig, source: WeightSource, max_model_len: int) -> Llama:
        """max_model_len: how many positions the rotary table holds."""
        embed = source.table(cls.embedding_name)
        layers = tuple(cls._load_layer(config, source, f"model.layers.{i}.") for i in range(config.num_layers))
        norm = source.vector("model.norm.weight")
        head = source.linear(cls.embedding_name if config.tie_word_embeddings else cls.head_name)
        return cls(config, LlamaWeights(embed, layers, norm, head, rotary_table(max_model_len, config.rope, source)))

    @classmethod
    def weight_shapes(cls, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""
        c = config
        linears = cls._linear_shapes(config)
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
        return shapes | c.rope.tensors

    @classmethod
    def gguf_names(cls, config: LlamaConfig) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it."""
        names = {
            "model.embed_tokens.weight": GgufName("token_embd.weight"),
            "model.norm.weight": GgufName("output_norm.weight"),
            "lm_head.weight": GgufName("output.weight"),
        }
        heads: dict[str, int] = {}
        if cls.is_permuted_in_gguf:
            heads = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}
        for i in range(config.num_layers):
            for part in (*cls._linear_shapes(config), *_NORMS):
                gguf = _GGUF_LAYER_NAMES[part]
                for kind in ("weight", "bias"):
                    names[f"model.layers.{i}.{part}.{kind}"] = GgufName(f"blk.{i}.{gguf}.{kind}", heads.get(part))
        return names

    @classmethod
    def _linear_shapes(cls, config: LlamaConfig) -> dict[str, tuple[int, int, bool]]:
        """Name within a layer -> rows, columns, whether it has a bias."""
        c = config
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        is_fused = len(cls.qkv_names) == 1
        qkv_rows = (q_size + 2 * kv_size,) if is_fused else (q_size, kv_size, kv_size)
        gate_up_rows = 2 * c.intermediate_size // len(cls.gate_up_names)
        return {
            **{name: (rows, c.hidden_size, c.qkv_bias) for name, rows in zip(cls.qkv_names, qkv_rows, strict=True)},
            "self_attn.o_proj": (c.hidden_size, q_size, c.output_bias),
            **dict.fromkeys(cls.gate_up_names, (gate_up_rows, c.hidden_size, c.mlp_bias)),
            "mlp.down_proj": (c.hidden_size, c.intermediate_size, c.mlp_bias),
        }

    @classmethod
    def _load_layer(cls, config: LlamaConfig, source: WeightSource, prefix: str) -> LlamaLayer:
        def linear(*names: str) -> LinearWeight:
            return source.linear(*(f"{prefix}{name}.weight" for name in names))

        def bias(present: bool, *names: str) -> Vector | None:
            return source.vector(*(f"{prefix}{name}.bias" for name in names)) if present else None

        def norm(name: str) -> Vector:
            return source.vector(f"{prefix}{name}.weight")

        head_norm = None
        if config.qk_norm:
            head_norm = HeadNorm(norm("self_attn.q_norm"), norm("self_attn.k_norm"), config.rms_norm_eps)
        return LlamaLayer(
            input_norm=norm("input_layernorm"),
            qkv=linear(*cls.qkv_names),
            qkv_bias=bias(config.qkv_bias, *cls.qkv_names),
            head_norm=head_norm,
            o=linear("self_attn.o_proj"),
            o_bias=bias(config.output_bias, "self_attn.o_proj"),
            mlp_norm=norm("post_attention_layernorm"),
            gate_up=source.gated_linear(*(f"{prefix}{name}.weight" for name in cls.gate_up_names)),
            gate_up_bias=bias(config.mlp_bias, *cls.gate_up_names),
            down=linear("mlp.down_proj"),
            down_bias=bias(config.mlp_bias, "mlp.down_proj"),
        )


_NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
