"""Weights nobody trained, for benchmarks: their sizes are all that config.json says of a model."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING

import numpy as np

from fastpaged.errors import ModelFormatError
from fastpaged.formats import StoredTensor
from fastpaged.models.registry import model_class
from fastpaged.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastpaged.config import ModelConfig
    from fastpaged.formats.mapped_file import MappedFile

_NUM_VALUES = 256  # that a random weight may have: it is looked up by a random byte


class _NoFiles:
    """What there is to map and to close."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: tuple[MappedFile, ...] = ()
        self.tensors: dict[str, StoredTensor] = {}

    def close(self) -> None:
        pass


class DummyCheckpoint(Checkpoint):
    """Stands where model files stand. A tensor is random, but the same whenever it is asked for: matrices are about
    normal, of variance 1 / columns, vectors are 1 where they scale and 0 where they are added. All are bfloat16."""

    def __init__(self, path: str, config: ModelConfig) -> None:
        super().__init__(path, config, _NoFiles(path), {})
        self._shapes = model_class(config).weight_shapes(config)

    @property
    def tensor_names(self) -> list[str]:
        """Of all the weights that the model needs."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """As the config says; None if it needs no such weight."""
        return self._shapes.get(name)

    def kind(self, name: str) -> str | None:
        """BF16; None if the model needs no such weight."""
        return "BF16" if name in self._shapes else None

    def tensor(self, name: str) -> StoredTensor:
        """Made at every call. ModelFormatError for a name that the model has no weight of."""
        shape = self._shapes.get(name)
        if shape is None:
            raise ModelFormatError(f"{self.path}: a {self.config.architecture} model has no tensor {name!r}")
        if len(shape) == 1:
            bits = np.full(shape, 0 if name.endswith("bias") else 0x3F80, np.uint16)
        else:
            random = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
            picks = np.frombuffer(random.bytes(math.prod(shape)), np.uint8)
            bits = _values(shape[-1])[picks]
        return StoredTensor(name, "BF16", shape, bits.reshape(-1).view(np.uint8))


def _values(num_columns: int) -> npt.NDArray[np.uint16]:
    """As bfloat16 bits: the quantiles of a logistic distribution, which is near a normal one and needs no tables."""
    share = (np.arange(_NUM_VALUES) + 0.5) / _NUM_VALUES
    spread = math.sqrt(3.0 / num_columns) / math.pi
    values = (np.log(share / (1 - share)) * spread).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)  # cut, not rounded: nobody will miss the bits
