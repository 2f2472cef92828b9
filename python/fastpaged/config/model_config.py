"""What a model is: its sizes and constants, read from its files and validated once, here."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from fastpaged.config.keys import FLOAT32_MAX, INT32_MAX, Keys
from fastpaged.errors import ModelFormatError

_HF_ARCHITECTURES = {"LlamaForCausalLM": "llama"}
_GGUF_ARCHITECTURES = ("llama",)
# What a broken file may claim and no model has: tables are sized by these before a tensor is looked at.
_LIMITS = {"num_layers": (1, 4096), "max_position_embeddings": (2, 2**24)}


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and constants of a model. `num_heads` counts query heads; rope_theta is the base of the rotation."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = _LIMITS.get(field.name, (1, INT32_MAX))
            if field.type == "int" and not low <= value <= high:
                raise ModelFormatError(f"{field.name} must be from {low} to {high}, got {reprlib.repr(value)}")
            if field.type == "float" and not 0 < value <= FLOAT32_MAX:
                raise ModelFormatError(f"{field.name} must be positive and finite in float32, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ModelFormatError(
                f"num_heads must be a multiple of num_kv_heads = {self.num_kv_heads}, got {self.num_heads}"
            )
        if self.head_dim % 2:
            raise ModelFormatError(f"head_dim must be even, got {self.head_dim}")

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in all layers, bfloat16."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 2

    @classmethod
    def from_hf(cls, config: Mapping[str, object]) -> ModelConfig:
        """From a Hugging Face config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        keys = Keys("config.json", config)
        architecture = _hf_architecture(config)
        for key, allowed in _HF_UNSUPPORTED.items():
            if config.get(key) not in allowed:
                raise keys.error(key, " or ".join(map(repr, allowed)))
        num_heads = keys.integer("num_attention_heads")
        hidden_size = keys.integer("hidden_size")
        return cls(
            architecture=architecture,
            vocab_size=keys.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.integer("intermediate_size"),
            num_layers=keys.integer("num_hidden_layers", limits=_LIMITS["num_layers"]),
            num_heads=num_heads,
            num_kv_heads=keys.integer("num_key_value_heads", num_heads),
            head_dim=keys.integer("head_dim", hidden_size // max(num_heads, 1)),
            rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
            rope_theta=_hf_rope_theta(keys),
            max_position_embeddings=keys.integer(
                "max_position_embeddings", 2048, limits=_LIMITS["max_position_embeddings"]
            ),
            tie_word_embeddings=keys.boolean("tie_word_embeddings", False),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], tensor_names: Collection[str]) -> ModelConfig:
        """From a GGUF file's metadata; a file without output.weight ties the head to the embedding."""
        keys = Keys("GGUF metadata", metadata)
        name = metadata.get("general.architecture")
        if not isinstance(name, str) or name not in _GGUF_ARCHITECTURES:  # an array has no one truth: types come first
            raise keys.error("general.architecture", f"one of {', '.join(_GGUF_ARCHITECTURES)}")
        scaling = metadata.get(f"{name}.rope.scaling.type", "none")
        if not isinstance(scaling, str) or scaling != "none":
            raise keys.error(f"{name}.rope.scaling.type", "'none' (scaled positions are not supported yet)")
        num_experts = metadata.get(f"{name}.expert_count", 0)
        if not isinstance(num_experts, int) or num_experts != 0:
            raise keys.error(f"{name}.expert_count", "0 (mixtures of experts are not supported yet)")
        num_heads = keys.integer(f"{name}.attention.head_count")
        hidden_size = keys.integer(f"{name}.embedding_length")
        head_dim = keys.integer(f"{name}.attention.key_length", hidden_size // max(num_heads, 1))
        for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
            if keys.integer(key, head_dim) != head_dim:
                raise keys.error(key, f"{head_dim}, the head size")
        return cls(
            architecture=name,
            vocab_size=keys.integer(f"{name}.vocab_size", _length(metadata.get("tokenizer.ggml.tokens"))),
            hidden_size=hidden_size,
            intermediate_size=keys.integer(f"{name}.feed_forward_length"),
            num_layers=keys.integer(f"{name}.block_count", limits=_LIMITS["num_layers"]),
            num_heads=num_heads,
            num_kv_heads=keys.integer(f"{name}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=keys.number(f"{name}.attention.layer_norm_rms_epsilon"),
            rope_theta=keys.number(f"{name}.rope.freq_base", 10000.0),
            max_position_embeddings=keys.integer(f"{name}.context_length", limits=_LIMITS["max_position_embeddings"]),
            tie_word_embeddings="output.weight" not in tensor_names,
        )


# Keys of config.json whose other values would change the arithmetic, and the values that do not.
_HF_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu"),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "partial_rotary_factor": (None, 1.0),
    "quantization_config": (None,),
}


def _hf_architecture(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    known = ", ".join(_HF_ARCHITECTURES)
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or name not in _HF_ARCHITECTURES:
        raise ModelFormatError(f"config.json: architectures must be one of {known}, got {reprlib.repr(names)}")
    return _HF_ARCHITECTURES[name]


def _hf_rope_theta(keys: Keys) -> float:
    """The base at the top level or in rope_parameters; any scaling of positions is refused."""
    theta = keys.number("rope_theta", 10000.0)
    for key in ("rope_scaling", "rope_parameters"):
        rope = keys.values.get(key)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            raise keys.error(key, "an object or null")
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise keys.error(key, "null or of rope_type 'default' (scaled positions are not supported yet)")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise keys.error(key, "without partial_rotary_factor, or with 1.0")
        theta = Keys(f"{keys.source}, {key}", rope).number("rope_theta", theta)
    return theta


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None
