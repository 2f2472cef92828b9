"""From stored tensors to a loaded model: dequantised straight to the dtype of the computation, packed, one weight at
a time."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastpaged import _core
from fastpaged.config.dtypes import element_bytes
from fastpaged.errors import ModelFormatError
from fastpaged.models.registry import Model, model_class
from fastpaged.models.weight_source import Part
from fastpaged.weights.checkpoint import Checkpoint, open_checkpoint, rows_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from fastpaged.config import DType, ModelConfig
    from fastpaged.formats import StoredTensor
    from fastpaged.ops.op_set import GatedWeight, LinearWeight
    from fastpaged.progress import ProgressCallback
    from fastpaged.weights.packed_weights import PackedWeights

Array = npt.NDArray[Any]  # uint16 (the bits of bfloat16) or float32


def load_model(
    source: Checkpoint | str | os.PathLike[str],
    device: _core.CpuDevice,
    progress: ProgressCallback | None = None,
    *,
    dtype: DType = "bfloat16",
    max_model_len: int | None = None,
    pack: Callable[[list[Array]], LinearWeight] | None = None,
    packed: PackedWeights | None = None,
) -> Model[Any]:
    """source: an open checkpoint, which stays open, or a path as for open_checkpoint().

    progress is called with ("loading weights", done, total) after every weight. dtype: of matrices and activations.
    max_model_len: positions of the rotary table; None for as many as the model was trained for. pack: what the matrices
    [N_i, K] of a linear layer become, which are valid during the call; None: packed for the device. packed: of the same
    checkpoint, device and dtype, with pack None: takes what is there, and remembers what is made. Matrices that are
    rounded to bfloat16 are logged once: float16 in a warning, float32 in an info. Raises ModelFormatError before
    anything is loaded if a tensor is missing, has another shape than the config says, or is none of the model's.
    """
    if not isinstance(source, Checkpoint):
        checkpoint = open_checkpoint(source)
        try:
            return load_model(
                checkpoint, device, progress, dtype=dtype, max_model_len=max_model_len, pack=pack, packed=packed
            )
        finally:
            checkpoint.close()
    config = source.config
    family = model_class(config)
    shapes = family.weight_shapes(config)
    _check_tensors(source, shapes, family)
    if dtype == "bfloat16":
        _tell_of_rounding(source, shapes)
    loader = Loader(source, len(shapes), device, dtype, pack, progress)
    weights = loader if packed is None else packed.source(loader)
    model = family.load(config, weights, max_model_len or config.max_position_embeddings)
    source.forget_pages()
    return model


def weight_bytes(config: ModelConfig, dtype: DType) -> int:
    """About how much memory the weights will take: a tied embedding stands there as a table and packed."""
    count = sum(math.prod(shape) for shape in model_class(config).weight_shapes(config).values())
    tied = config.vocab_size * config.hidden_size if config.tie_word_embeddings else 0
    return (count + tied) * element_bytes(dtype)


def _check_tensors(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], family: type[Model[Any]]) -> None:
    for name, expected in shapes.items():
        shape = checkpoint.shape(name)
        if shape is None:
            raise ModelFormatError(
                f"{checkpoint.path}: tensor {checkpoint.spelled(name)} of shape {list(expected)} is missing"
            )
        if shape != expected:
            raise ModelFormatError(
                f"{checkpoint.path}: tensor {checkpoint.spelled(name)} must have shape {list(expected)}, "
                f"got {list(shape)}"
            )
    for name in checkpoint.tensor_names:
        # A head that is not in `shapes` is the embedding once more.
        if name not in shapes and name != family.head_name and not name.endswith(family.ignored_suffixes):
            raise ModelFormatError(
                f"{checkpoint.path}: tensor {checkpoint.spelled(name)} is no part of a "
                f"{checkpoint.config.architecture} model as its config describes it (adapters are not supported yet)"
            )


def _tell_of_rounding(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
    """Vectors stay in float32, and blocks of few bits are no dtype that somebody trained in."""
    for kind, level, bits in (("F16", logging.WARNING, 11), ("F32", logging.INFO, 24)):
        count = sum(len(shape) > 1 and checkpoint.kind(name) == kind for name, shape in shapes.items())
        if count:
            logging.getLogger(__name__).log(
                level,
                "%s: %d matrices stored as %s are rounded to bfloat16: 8 significant bits instead of %d, so answers "
                "may differ from those of the unrounded model, which dtype='float32' gives",
                checkpoint.path,
                count,
                {"F16": "float16", "F32": "float32"}[kind],
                bits,
            )


_BYTES_IN_MEMORY = 1 << 26  # of model files, beside the weight that is being loaded


class Loader:
    """The WeightSource of one load. Dequantised values pass through one scratch array, reused from weight to weight;
    what was read of the files leaves memory again as the load goes on."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_weights: int,
        device: _core.CpuDevice,
        dtype: DType,
        pack: Callable[[list[Array]], LinearWeight] | None,
        progress: ProgressCallback | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._num_weights = num_weights
        self._device = device
        self._pack = pack or (lambda parts: _core.PackedLinear(device, parts, dtype))
        self._pack_gated = pack or (lambda parts: _core.PackedLinear(device, parts, dtype, gated=True))
        self._may_lend = pack is None
        self._progress = progress
        self._loaded: set[str] = set()
        self._tables: dict[str, Array] = {}
        self._element: type[np.uint16] | type[np.float32] = np.uint16 if dtype == "bfloat16" else np.float32
        self._own_kind = "BF16" if dtype == "bfloat16" else "F32"
        self._scratch: Array = np.empty(0, self._element)
        self._bytes_read = 0  # since pages of the files were last let go of

    def table(self, name: str) -> Array:
        """[rows, columns] in the dtype of the computation: the file itself where it lies there so, for few of its rows
        are ever read."""
        stored = self._checkpoint.tensor(name)
        view = self._view(stored) if self._may_lend else None
        out = self._dequantized(stored, self._element) if view is None else view
        self._tables[name] = out
        self.report([name])
        return out

    def float_table(self, name: str) -> npt.NDArray[np.float32]:
        """[rows, columns]"""
        out = self._dequantized(self._checkpoint.tensor(name), np.float32)
        self.report([name])
        return out

    def vector(self, *parts: str | Part) -> npt.NDArray[np.float32]:
        """All parts, one behind the other."""
        vectors = []
        for part in map(_part, parts):
            vector = self._dequantized(self._stored(part), np.float32)
            vectors.append(vector - np.float32(1) if self._checkpoint.where(part.name).minus_one else vector)
        self.report(parts)
        return np.concatenate(vectors)

    def linear(self, *parts: str | Part) -> LinearWeight:
        """All parts, stacked along N and packed."""
        wanted = [_part(part) for part in parts]
        if len(wanted) == 1 and parts[0] in self._tables:
            packed = self._pack([self._tables[wanted[0].name]])
        else:
            packed = self._pack(self._matrices(wanted))
        self._forget_pages()
        self.report(parts)
        return packed

    def gated_linear(self, *parts: str | Part) -> GatedWeight:
        """All parts, gates before ups, packed."""
        wanted = [_part(part) for part in parts]
        packed = self._pack_gated(self._matrices(wanted))
        self._forget_pages()
        self.report(parts)
        return packed

    def _stored(self, part: Part) -> StoredTensor:
        """Still as bytes; with the part's rows, unless they are columns of the file yet."""
        stored = self._checkpoint.tensor(part.name)
        self._bytes_read += stored.data.nbytes
        return stored if part.rows is None or self._is_transposed(part) else rows_of(stored, part.rows)

    def _matrices(self, parts: list[Part]) -> list[Array]:
        """In the dtype of the computation: in the file itself where they are stored so, else in the scratch array."""
        stored = [self._stored(part) for part in parts]
        sizes = [math.prod(tensor.shape) for tensor in stored]
        if self._scratch.size < sum(sizes):
            self._scratch = np.empty(sum(sizes), self._element)
        matrices = []
        begin = 0
        for part, tensor, size in zip(parts, stored, sizes, strict=True):
            matrix = self._view(tensor)
            if matrix is None:
                matrix = self._scratch[begin : begin + size].reshape(tensor.shape)
                self._dequantize(tensor, matrix)
            if self._is_transposed(part):
                matrix = np.ascontiguousarray(matrix.T if part.rows is None else matrix.T[part.rows])
            matrices.append(matrix)
            begin += size
        return matrices

    def _forget_pages(self) -> None:
        """Now and then, for each time costs a little."""
        if self._bytes_read > _BYTES_IN_MEMORY:
            self._checkpoint.forget_pages()
            self._bytes_read = 0

    def _is_transposed(self, part: Part) -> bool:
        return part.transposed != self._checkpoint.where(part.name).transposed

    def _dequantized(self, stored: StoredTensor, element: type[np.uint16] | type[np.float32]) -> Array:
        out: Array = np.empty(stored.shape, element)
        self._dequantize(stored, out)
        return out

    def _dequantize(self, stored: StoredTensor, out: Array) -> None:
        _core.dequantize(self._device, stored.kind, stored.data, out)

    def _view(self, stored: StoredTensor) -> Array | None:
        """None for other kinds, and for bytes at an odd address, which safetensors allows."""
        if stored.kind != self._own_kind:
            return None
        values = stored.data.view(self._element).reshape(stored.shape)
        return values if values.flags.aligned else None

    def report(self, parts: Iterable[str | Part]) -> None:
        """These are loaded. A weight used twice, as a tied embedding is, counts once."""
        self._loaded.update(_part(part).name for part in parts)
        if self._progress is not None:
            self._progress("loading weights", len(self._loaded), self._num_weights)


def _part(part: str | Part) -> Part:
    return Part(part) if isinstance(part, str) else part
