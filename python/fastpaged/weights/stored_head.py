"""Which head a model has whose config ties it to the embedding while its file holds one."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastpaged.formats.stored_tensor import num_bytes
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.registry import model_class

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastpaged.config import ModelConfig
    from fastpaged.formats import StoredTensor
    from fastpaged.weights.checkpoint import WeightFiles

_PIECE_VALUES = 1 << 20  # compared at a time: the table of a large vocabulary is a gigabyte


def with_stored_head(config: ModelConfig, file: WeightFiles, names: Mapping[str, GgufName]) -> ModelConfig:
    """The config, untied if a stored head has other values than the embedding: then that head counts, as it does in
    `transformers`, and the log says so. names: as of a Checkpoint. The file is one of safetensors."""
    family = model_class(config)
    embedding, head = (
        file.tensors.get(names.get(name, GgufName(name)).name) for name in (family.embedding_name, family.head_name)
    )
    if not config.tie_word_embeddings or embedding is None or head is None or _same_values(embedding, head):
        return config
    logging.getLogger(__name__).warning(
        "%s: the config ties the head to the embedding (tie_word_embeddings, or the family's default), yet %r differs "
        "from %r: it is used as the head, untied",
        file.path,
        head.name,
        embedding.name,
    )
    return replace(config, tie_word_embeddings=False)


def _same_values(one: StoredTensor, other: StoredTensor) -> bool:
    """Bit for bit, or number for number where one is stored in more bits than the other."""
    if one.shape != other.shape:
        return False
    num_values = math.prod(one.shape)
    for begin in range(0, num_values, _PIECE_VALUES):
        a, b = (_bytes(tensor, begin, min(begin + _PIECE_VALUES, num_values)) for tensor in (one, other))
        if one.kind != other.kind:
            a, b = _numbers(one.kind, a), _numbers(other.kind, b)
        if not np.array_equal(a, b):
            return False
    return True


def _bytes(tensor: StoredTensor, begin: int, end: int) -> npt.NDArray[Any]:
    """Of these values, in the order of the file."""
    size = num_bytes(tensor.kind, ())
    return tensor.data[begin * size : end * size]


def _numbers(kind: str, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Exact: float32 holds all values of the dtypes that safetensors files may have here."""
    if kind == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float16 if kind == "F16" else np.float32).astype(np.float32)
