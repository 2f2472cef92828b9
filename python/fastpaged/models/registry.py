"""The model families, and which of them a file means."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from fastpaged.config import ModelConfig
from fastpaged.config.keys import Keys
from fastpaged.errors import ModelFormatError
from fastpaged.models.falcon import Falcon
from fastpaged.models.gemma3 import Gemma3
from fastpaged.models.gpt2 import Gpt2
from fastpaged.models.gpt_neox import GptNeox
from fastpaged.models.llama import Llama
from fastpaged.models.mistral import Mistral
from fastpaged.models.opt import Opt
from fastpaged.models.phi3 import Phi3
from fastpaged.models.qwen2 import Qwen2
from fastpaged.models.qwen3 import Qwen3

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.models.gguf_name import GgufName
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.op_set import BatchInputs, OpSet, Value

Config = TypeVar("Config", bound=ModelConfig)


class Model(Protocol[Config]):
    """What a family is to the floors above. Its keys of the files, and its names of weights, are its own affair."""

    family: ClassVar[str]  # ModelConfig.architecture
    hf_architectures: ClassVar[tuple[str, ...]]  # as in config.json
    gguf_architectures: ClassVar[tuple[str, ...]]  # as in general.architecture
    base_prefix: ClassVar[str]  # of names of weights; missing in files that were saved without the head
    embedding_name: ClassVar[str]  # of the table of token embeddings, and of the head
    head_name: ClassVar[str]  # where a model is tied, no file need hold it
    ignored_suffixes: ClassVar[tuple[str, ...]]  # of tensors that lie in some files and are not needed

    @property
    def config(self) -> Config:
        """The sizes it was loaded with."""

    def forward(self, op: OpSet, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, float32 [samples, vocab]."""

    @classmethod
    def config_from_hf(cls, keys: Keys) -> Config:
        """From config.json. ModelFormatError naming the key that is wrong, or that asks for what is not supported."""

    @classmethod
    def config_from_gguf(cls, keys: Keys, tensor_names: Collection[str]) -> Config:
        """From a GGUF file's metadata, and the names of its tensors."""

    @classmethod
    def load(cls, config: Config, source: WeightSource, max_model_len: int) -> Model[Config]:
        """max_model_len: how many positions it can be asked for."""

    @classmethod
    def weight_shapes(cls, config: Config) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""

    @classmethod
    def gguf_names(cls, config: Config) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it."""


FAMILIES: tuple[type[Model[Any]], ...] = (
    Llama, Mistral, Qwen2, Qwen3, Phi3, Gemma3, Opt, Gpt2, Falcon, GptNeox,
)  # fmt: skip


def model_class(config: ModelConfig) -> type[Model[Any]]:
    """The family a config belongs to."""
    (found,) = (model for model in FAMILIES if model.family == config.architecture)
    return found


def config_from_hf(values: Mapping[str, object]) -> ModelConfig:
    """From a config.json. Raises ModelFormatError: an unknown architecture is named with those there are."""
    keys = Keys("config.json", values)
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    for model in FAMILIES:
        if isinstance(name, str) and name in model.hf_architectures:
            keys.only("is_causal", None, True, why="every token sees those before it alone")
            keys.only("quantization_config", None, why="quantised safetensors are not supported; GGUF files are")
            config: ModelConfig = model.config_from_hf(keys)
            return config
    known = ", ".join(name for model in FAMILIES for name in model.hf_architectures)
    hint = ""
    if any(isinstance(values.get(key), Mapping) for key in ("text_config", "vision_config")):
        hint = " (a multimodal model; text is all that is supported: a .gguf file of it may hold its text model alone)"
    raise ModelFormatError(f"config.json: architectures must be one of {known}, got {reprlib.repr(names)}{hint}")


def config_from_gguf(metadata: Mapping[str, object], tensor_names: Collection[str]) -> ModelConfig:
    """From a GGUF file's metadata. Raises ModelFormatError: an unknown architecture is named with those there are."""
    keys = Keys("GGUF metadata", metadata)
    name = metadata.get("general.architecture")
    for model in FAMILIES:
        if isinstance(name, str) and name in model.gguf_architectures:
            config: ModelConfig = model.config_from_gguf(keys, tensor_names)
            return config
    known = ", ".join(name for model in FAMILIES for name in model.gguf_architectures)
    raise keys.error("general.architecture", f"one of {known}")
