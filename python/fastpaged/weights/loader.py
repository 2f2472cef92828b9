"""From stored tensors to a loaded model: dequantised straight to bfloat16, packed, one weight at a time."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastpaged import _core
from fastpaged.errors import ModelFormatError
from fastpaged.models.registry import Model, model_class
from fastpaged.weights.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    import os

    from fastpaged.formats import StoredTensor
    from fastpaged.progress import ProgressCallback

# Left over in some files; the numbers follow from the config.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"


def load_model(
    source: Checkpoint | str | os.PathLike[str],
    device: _core.CpuDevice,
    progress: ProgressCallback | None = None,
    *,
    max_model_len: int | None = None,
) -> Model:
    """source: an open checkpoint, which stays open, or a path as for open_checkpoint().

    progress is called with ("loading weights", done, total) after every weight. max_model_len: positions of the rotary
    table; None for as many as the model was trained for. Matrices in float16 (a warning) or float32 (an info) are
    rounded to bfloat16, which is logged once. Raises ModelFormatError before anything is loaded if a tensor is missing,
    has another shape than the config says, or is none of the model's.
    """
    if not isinstance(source, Checkpoint):
        checkpoint = open_checkpoint(source)
        try:
            return load_model(checkpoint, device, progress, max_model_len=max_model_len)
        finally:
            checkpoint.close()
    config = source.config
    family = model_class(config.architecture)
    shapes = family.weight_shapes(config)
    _check_tensors(source, shapes)
    _tell_of_rounding(source, shapes)
    loader = _Loader(source, len(shapes), device, progress)
    return family.load(config, loader, max_model_len or config.max_position_embeddings)


def _check_tensors(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
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
        is_tied_head = name == "lm_head.weight" and checkpoint.config.tie_word_embeddings
        if name not in shapes and not is_tied_head and not name.endswith(_IGNORED_SUFFIX):
            raise ModelFormatError(
                f"{checkpoint.path}: tensor {checkpoint.spelled(name)} is no part of a "
                f"{checkpoint.config.architecture} model (biases, scaled positions and adapters are not supported yet)"
            )


def _tell_of_rounding(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
    """Vectors stay in float32, and blocks of few bits are no dtype that somebody trained in."""
    for kind, level, bits in (("F16", logging.WARNING, 11), ("F32", logging.INFO, 24)):
        count = sum(len(shape) > 1 and checkpoint.kind(name) == kind for name, shape in shapes.items())
        if count:
            logging.getLogger(__name__).log(
                level,
                "%s: %d matrices stored as %s are rounded to bfloat16, the only weight dtype there is: 8 significant "
                "bits instead of %d, so answers may differ from those of the unrounded model",
                checkpoint.path,
                count,
                {"F16": "float16", "F32": "float32"}[kind],
                bits,
            )


class _Loader:
    """The WeightSource of one load. Dequantised values pass through one scratch array, reused from weight to weight."""

    def __init__(
        self, checkpoint: Checkpoint, num_weights: int, device: _core.CpuDevice, progress: ProgressCallback | None
    ) -> None:
        self._checkpoint = checkpoint
        self._num_weights = num_weights
        self._device = device
        self._progress = progress
        self._loaded: set[str] = set()
        self._tables: dict[str, npt.NDArray[np.uint16]] = {}
        self._scratch = np.empty(0, np.uint16)

    def table(self, name: str) -> npt.NDArray[np.uint16]:
        stored = self._checkpoint.tensor(name)
        out = np.empty(stored.shape, np.uint16)
        _core.dequantize(self._device, stored.kind, stored.data, out)
        self._tables[name] = out
        self._report(name)
        return out

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        stored = self._checkpoint.tensor(name)
        out = np.empty(stored.shape, np.float32)
        _core.dequantize(self._device, stored.kind, stored.data, out)
        self._report(name)
        return out

    def linear(self, *names: str) -> _core.PackedLinear:
        if len(names) == 1 and names[0] in self._tables:
            packed = _core.PackedLinear(self._device, [self._tables[names[0]]])
        else:
            packed = _core.PackedLinear(self._device, self._matrices([self._checkpoint.tensor(name) for name in names]))
        self._report(*names)
        return packed

    def _matrices(self, stored: list[StoredTensor]) -> list[npt.NDArray[np.uint16]]:
        """As bfloat16: in the file itself where they are stored so, else in the scratch array."""
        sizes = [math.prod(tensor.shape) for tensor in stored]
        if self._scratch.size < sum(sizes):
            self._scratch = np.empty(sum(sizes), np.uint16)
        matrices = []
        begin = 0
        for tensor, size in zip(stored, sizes, strict=True):
            matrix = _bfloat16_view(tensor)
            if matrix is None:
                matrix = self._scratch[begin : begin + size].reshape(tensor.shape)
                _core.dequantize(self._device, tensor.kind, tensor.data, matrix)
            matrices.append(matrix)
            begin += size
        return matrices

    def _report(self, *names: str) -> None:
        """A weight used twice, as a tied embedding is, counts once."""
        self._loaded.update(names)
        if self._progress is not None:
            self._progress("loading weights", len(self._loaded), self._num_weights)


def _bfloat16_view(stored: StoredTensor) -> npt.NDArray[np.uint16] | None:
    """None for other kinds, and for bytes at an odd address, which safetensors allows."""
    if stored.kind != "BF16":
        return None
    values = stored.data.view(np.uint16).reshape(stored.shape)
    return values if values.flags.aligned else None
