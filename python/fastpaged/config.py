"""What model it is, and how the engine is set up: frozen, and validated once, here."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from fastpaged.errors import InvalidRequestError, ModelFormatError

_HF_ARCHITECTURES = {"LlamaForCausalLM": "llama"}
_GGUF_ARCHITECTURES = ("llama",)
_INT32_MAX = 2**31 - 1
_FLOAT32_MAX = 3.4028234663852886e38
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
            low, high = _LIMITS.get(field.name, (1, _INT32_MAX))
            if field.type == "int" and not low <= value <= high:
                raise ModelFormatError(f"{field.name} must be from {low} to {high}, got {reprlib.repr(value)}")
            if field.type == "float" and not 0 < value <= _FLOAT32_MAX:
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
        keys = _Keys("config.json", config)
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
        keys = _Keys("GGUF metadata", metadata)
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


def _hf_rope_theta(keys: _Keys) -> float:
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
        theta = _Keys(f"{keys.source}, {key}", rope).number("rope_theta", theta)
    return theta


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None


class _Keys:
    """Typed look-ups in a model's configuration: a wrong value is an error that names its key."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.values = values

    def error(self, key: str, expected: str) -> ModelFormatError:
        found = f"got {reprlib.repr(self.values[key])}" if key in self.values else "but it is missing"
        return ModelFormatError(f"{self.source}: {key} must be {expected}, {found}")

    def integer(self, key: str, default: int | None = None, *, limits: tuple[int, int] = (1, _INT32_MAX)) -> int:
        value = self._get(key, default)
        low, high = limits
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "a number")
        if not 0 < value <= _FLOAT32_MAX:  # also refuses NaN; compared as it is: a long integer fits into no float
            raise self.error(key, "a positive number that float32 can hold")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        return default if value is None else value


@dataclass(frozen=True)
class EngineConfig:
    """How one engine runs one model. Every bad value is an InvalidRequestError naming the argument."""

    model: str  # a .gguf file, a model folder, or a name (org/name)
    max_model_len: int | None = None  # tokens of prompt and answer; None: what the model was trained for
    block_size: int = 16  # tokens per KV block
    num_blocks: int | None = None  # of the KV pool; None: sized from kv_cache_memory_bytes or free memory
    kv_cache_memory_bytes: int | None = None
    swap_space: float | None = None  # GiB of host memory for swapped requests; None: 4, or what is there and of use
    preemption_mode: str | None = None  # "recompute", "swap", or None: "swap" for requests of several sequences alone
    max_num_seqs: int = 256  # sequences in one step
    max_num_batched_tokens: int = 2048  # tokens in one step
    long_prefill_token_threshold: int = 0  # most tokens of one sequence in one step; 0: no limit
    seed: int = 0  # requests without a seed draw theirs from it
    max_logprobs: int = 20  # most alternatives a request may ask for; -1: the whole vocabulary
    num_threads: int | None = None  # None: the CPUs this process may use
    isa: str | None = None  # name of an op table; None: FASTPAGED_ISA, or the best this CPU has

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        if not isinstance(self.model, str) or not self.model:
            raise InvalidRequestError(
                f"model must be the path of a .gguf file or a model folder, or a name on the hub (org/name), "
                f"got {self.model!r}"
            )
        for name, (low, high) in _ENGINE_RANGES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                none = "None or " if name in _OPTIONAL else ""
                raise InvalidRequestError(f"{name} must be {none}an integer from {low} to {high}, got {value!r}")
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise InvalidRequestError(
                f"num_blocks and kv_cache_memory_bytes both size the KV pool: give one, "
                f"got {self.num_blocks} and {self.kv_cache_memory_bytes}"
            )
        self._check_preemption()
        if self.isa is not None and not isinstance(self.isa, str):
            raise InvalidRequestError(f"isa must be None or the name of an op table, got {self.isa!r}")

    def _check_preemption(self) -> None:
        space = self.swap_space
        if space is not None:
            is_number = isinstance(space, (int, float)) and not isinstance(space, bool)
            if not is_number or not 0 <= space <= _MAX_SWAP_SPACE:  # also refuses NaN
                raise InvalidRequestError(
                    f"swap_space must be None or a number of GiB from 0 to {_MAX_SWAP_SPACE}, got {reprlib.repr(space)}"
                )
        mode = self.preemption_mode
        if mode is not None and not (isinstance(mode, str) and mode in PREEMPTION_MODES):
            allowed = " or ".join(map(repr, (None, *PREEMPTION_MODES)))
            raise InvalidRequestError(f"preemption_mode must be {allowed}, got {reprlib.repr(mode)}")


PREEMPTION_MODES = ("recompute", "swap")
_MAX_SWAP_SPACE = 2**33 - 1  # GiB: below 2**63 bytes
_OPTIONAL = ("max_model_len", "num_blocks", "kv_cache_memory_bytes", "num_threads")
_ENGINE_RANGES = {
    "max_model_len": (2, _INT32_MAX),
    "block_size": (1, 256),
    "num_blocks": (1, _INT32_MAX),
    "kv_cache_memory_bytes": (1, 2**63 - 1),
    "max_num_seqs": (1, _INT32_MAX),
    "max_num_batched_tokens": (1, 2**20),
    "long_prefill_token_threshold": (0, _INT32_MAX),
    "seed": (0, 2**64 - 1),
    "max_logprobs": (-1, _INT32_MAX),
    "num_threads": (1, 1024),
}
