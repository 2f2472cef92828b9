"""PackedWeights: what one load takes from the cache of packed weights, and what it leaves for the next."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fastpaged import _core
from fastpaged.models.weight_source import Part, WeightSource
from fastpaged.weights.cache_writer import CacheWriter
from fastpaged.weights.packed_cache import PackedCache, PackedKey

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from fastpaged.config import DType
    from fastpaged.ops.op_set import GatedWeight, LinearWeight
    from fastpaged.weights.checkpoint import Checkpoint
    from fastpaged.weights.loader import Loader
    from fastpaged.weights.packed_file import Array, Kept, PackedFile

_KEPT = TypeVar("_KEPT", bound="Kept")


class PackedWeights:
    """For one load of one checkpoint. Where there is a packed file, `source` hands out what is mapped in it; where
    there is none, what the loader made, which write_later() then puts into one."""

    def __init__(self, cache: PackedCache, checkpoint: Checkpoint, device: _core.CpuDevice, dtype: DType) -> None:
        self._cache = cache
        self._device = device
        self._model_files = checkpoint.files
        self._sources = tuple(file.identity for file in checkpoint.files)
        settings = {
            "version": _core.__version__,
            "layout": device.weight_layout,
            "dtype": dtype,
            "model": repr(checkpoint.config),
        }
        self._key = PackedKey(self._sources, settings)
        self._file = cache.open(self._key, device)
        self._made: dict[str, Kept] = {}
        if self._file is not None:
            self._file.advise()

    def source(self, loader: Loader) -> WeightSource:
        """loader: asked for what is not in the packed file."""
        return _PackedSource(loader, self._device, self._file, self._made)

    def write_later(self) -> CacheWriter | None:
        """None where there is a packed file, the model changed while it was read, or no thread is to be had."""
        if self._file is not None or not self._made or not all(source.holds() for source in self._sources):
            return None
        made, self._made = self._made, {}
        try:
            return CacheWriter(self._cache, self._key, made, self._model_files)
        except RuntimeError as error:  # the system refuses a thread: an engine needs none of this
            logging.getLogger(__name__).info("packed weights are not kept for the next start: %s", error)
            return None


class _PackedSource:
    """A WeightSource. What it hands out is called by the question: a model asks the same at every load."""

    def __init__(self, loader: Loader, device: _core.CpuDevice, file: PackedFile | None, made: dict[str, Kept]) -> None:
        self._loader = loader
        self._device = device
        self._file = file
        self._made = made

    def table(self, name: str) -> Array:
        return self._array("table", (name,), lambda: self._loader.table(name))

    def float_table(self, name: str) -> npt.NDArray[np.float32]:
        return self._array("float_table", (name,), lambda: self._loader.float_table(name))

    def vector(self, *parts: str | Part) -> npt.NDArray[np.float32]:
        return self._array("vector", parts, lambda: self._loader.vector(*parts))

    def linear(self, *parts: str | Part) -> LinearWeight:
        return self._linear("linear", parts, lambda: self._loader.linear(*parts))

    def gated_linear(self, *parts: str | Part) -> GatedWeight:
        return self._linear("gated_linear", parts, lambda: self._loader.gated_linear(*parts))

    def _linear(self, what: str, parts: tuple[str | Part, ...], load: Callable[[], Any]) -> Any:
        name = _called(what, parts)
        if self._file is not None and name in self._file.pieces:
            self._loader.report(parts)
            return self._file.linear(name, self._device)
        return self._keep(name, load())

    def _array(self, what: str, parts: tuple[str | Part, ...], load: Callable[[], Array]) -> Array:
        name = _called(what, parts)
        if self._file is not None and name in self._file.pieces:
            self._loader.report(parts)
            return self._file.array(name)
        return self._keep(name, load())

    def _keep(self, name: str, value: _KEPT) -> _KEPT:
        self._made[name] = value
        return value


def _called(what: str, parts: tuple[str | Part, ...]) -> str:
    """The question, told apart from every other one."""
    words = [what]
    for part in parts:
        words.append(part if isinstance(part, str) else part.name)
        if isinstance(part, Part) and part.transposed:
            words.append("transposed")
        if isinstance(part, Part) and part.rows is not None:
            words.append(hashlib.sha256(np.ascontiguousarray(part.rows).tobytes()).hexdigest())
    return " ".join(words)
