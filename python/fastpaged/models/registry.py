"""The model families by architecture name (ModelConfig.architecture)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastpaged.errors import ModelFormatError
from fastpaged.models.llama import Llama

if TYPE_CHECKING:
    from fastpaged.config import ModelConfig
    from fastpaged.models.gguf_name import GgufName
    from fastpaged.models.weight_source import WeightSource
    from fastpaged.ops.graph_ops import BatchInputs, GraphOps, Value


class Model(Protocol):
    """What a family is to the floors above."""

    @property
    def config(self) -> ModelConfig:
        """The sizes it was loaded with."""

    def forward(self, op: GraphOps, batch: BatchInputs) -> Value:
        """Logits of the sampled rows, [samples, vocab]."""

    @classmethod
    def load(cls, config: ModelConfig, source: WeightSource, max_model_len: int) -> Model:
        """max_model_len: how many positions it can be asked for."""

    @staticmethod
    def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name."""

    @staticmethod
    def gguf_names(config: ModelConfig) -> dict[str, GgufName]:
        """Hugging Face name -> what llama.cpp's converter makes of it."""


MODELS: dict[str, type[Model]] = {"llama": Llama}


def model_class(architecture: str) -> type[Model]:
    """Raises ModelFormatError naming the families there are."""
    if architecture not in MODELS:
        raise ModelFormatError(f"architecture must be one of {', '.join(MODELS)}, got {architecture!r}")
    return MODELS[architecture]
