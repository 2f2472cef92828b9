"""What the floors above know of a model: its sizes. Each family adds what else it needs, in its own file."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from fastpaged.config.dtypes import kv_vector_bytes
from fastpaged.config.keys import INT32_MAX
from fastpaged.errors import ModelFormatError

if TYPE_CHECKING:
    from fastpaged.config.dtypes import KVDType

# What a broken file may claim and no model has: tables are sized by these before a tensor is looked at.
LAYER_LIMITS = (1, 4096)
POSITION_LIMITS = (2, 2**24)
_LIMITS = {"num_layers": LAYER_LIMITS, "max_position_embeddings": POSITION_LIMITS}


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a model. architecture: the name of its family. num_heads counts query heads."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int  # the longest context it was made for
    tie_word_embeddings: bool  # the head is the embedding

    def __post_init__(self) -> None:
        for field in fields(ModelConfig):
            value = getattr(self, field.name)
            low, high = _LIMITS.get(field.name, (1, INT32_MAX))
            if field.type == "int" and not low <= value <= high:
                raise ModelFormatError(f"{field.name} must be from {low} to {high}, got {reprlib.repr(value)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelFormatError(
                f"num_heads must be a multiple of num_kv_heads = {self.num_kv_heads}, got {self.num_heads}"
            )

    @property
    def table_bytes_per_position(self) -> int:
        """Of tables that are made beside the weights, for each position a request may reach."""
        return 0

    def kv_bytes_per_token(self, dtype: KVDType) -> int:
        """K and V of one token in all layers. dtype: of the KV cache."""
        return 2 * self.num_layers * self.num_kv_heads * kv_vector_bytes(dtype, self.head_dim)
