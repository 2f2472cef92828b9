"""A model's files under one roof: its config, and its stored tensors by Hugging Face name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fastpaged.errors import InvalidRequestError, ModelFormatError, ModelNotFoundError
from fastpaged.formats import GgufFile, SafetensorsFile, ShardedSafetensors, StoredTensor, find_gguf
from fastpaged.formats.file_kind import REGULAR_FILE, file_kind
from fastpaged.formats.safetensors_index import INDEX_NAME
from fastpaged.models.gguf_name import GgufName
from fastpaged.models.registry import config_from_gguf, config_from_hf, model_class
from fastpaged.weights.stored_head import with_stored_head

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    import numpy.typing as npt

    from fastpaged.config import ModelConfig
    from fastpaged.formats.mapped_file import MappedFile
    from fastpaged.models.registry import Model


class WeightFiles(Protocol):
    """Open files of one format: `path` for messages, the files, and what is stored in them by its name there."""

    path: str
    files: tuple[MappedFile, ...]
    tensors: dict[str, StoredTensor]

    def close(self) -> None:
        """Lets go of the files; arrays already handed out stay valid."""


class Checkpoint:
    """Open model files. Tensors are views of the mapped files, valid until close()."""

    def __init__(self, path: str, config: ModelConfig, file: WeightFiles, names: dict[str, GgufName]):
        """names: Hugging Face name -> name in the file; a name that is not there is the same in both."""
        self.path = path
        self.config = config
        self._file = file
        self._names = names

    @property
    def tensor_names(self) -> Collection[str]:
        """Hugging Face names; a tensor of the file that has none goes by its own."""
        known = {stored.name: name for name, stored in self._names.items()}
        return [known.get(name, name) for name in self._file.tensors]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of the original, outermost dimension first; None if there is no tensor called `name` (Hugging Face)."""
        where = self.where(name)
        stored = self._file.tensors.get(where.name)
        if stored is None:
            return None
        return stored.shape[::-1] if where.transposed else stored.shape

    def kind(self, name: str) -> str | None:
        """How it is stored, one of STORED_KINDS; None if there is no tensor called `name` (Hugging Face)."""
        stored = self._file.tensors.get(self.where(name).name)
        return None if stored is None else stored.kind

    def tensor(self, name: str) -> StoredTensor:
        """The tensor of this Hugging Face name, rows in the original order; what else was done to it, where() says.
        ModelFormatError if it is missing."""
        where = self.where(name)
        stored = self._file.tensors.get(where.name)
        if stored is None:
            raise ModelFormatError(f"{self.path}: tensor {self.spelled(name)} is missing")
        if where.permuted_heads is not None:
            stored = _unpermuted(stored, where.permuted_heads)
        if where.rows is not None:
            original = np.empty_like(where.rows)
            original[where.rows] = np.arange(len(where.rows))
            stored = rows_of(stored, original)
        return stored

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """That hold the tensors; none after close()."""
        return self._file.files

    def forget_pages(self) -> None:
        """Takes what was read of the files out of this process's memory; tensors stay valid."""
        for file in self._file.files:
            file.forget_pages()

    def where(self, name: str) -> GgufName:
        """How the tensor of this Hugging Face name is called and laid out in the file."""
        return self._names.get(name, GgufName(name))

    def spelled(self, name: str) -> str:
        """The name for messages: with the one in the file where the two differ."""
        in_file = self.where(name).name
        return repr(name) if in_file == name else f"{name!r} ({in_file!r} in the file)"

    def close(self) -> None:
        """Unmaps the files, as soon as no array handed out is alive."""
        self._file.close()


def rows_of(stored: StoredTensor, rows: npt.NDArray[np.int64]) -> StoredTensor:
    """These rows (elements, of a vector), moved as the bytes they are stored in: no value is touched."""
    data = stored.data.reshape(stored.shape[0], -1)[rows]
    return StoredTensor(stored.name, stored.kind, (len(rows), *stored.shape[1:]), data.reshape(-1))


def open_checkpoint(
    path: str | os.PathLike[str], *, load_format: str = "auto", overrides: Mapping[str, object] | None = None
) -> Checkpoint:
    """path: a .gguf file, a folder with config.json and model.safetensors (or its index, and the files that names), or
    a folder with one .gguf file. load_format: "safetensors" or "gguf", to open no other; "auto" takes the first there
    is. overrides: keys and values laid over config.json, which a .gguf file has none of (InvalidRequestError)."""
    folder = Path(path)
    for name in ("model.safetensors", INDEX_NAME) if load_format != "gguf" else ():
        if file_kind(folder / name) is not None:  # if it is no file, opening it says so
            return _open_safetensors(folder / name, overrides or {})
    gguf = find_gguf(path)
    if gguf is not None and load_format != "safetensors":
        if overrides:
            raise InvalidRequestError(
                f"hf_overrides must be empty for {gguf}, which has no config.json, got {overrides}"
            )
        return _open_gguf(gguf)
    if load_format != "auto":
        raise ModelNotFoundError(
            f"model: there is nothing in {load_format} format at {str(folder)!r}, as load_format asks"
        )
    raise ModelNotFoundError(
        f"model: the folder {str(folder)!r} must hold config.json and model.safetensors (or {INDEX_NAME} and the "
        f"files it names), or one .gguf file; it has neither{_pickled(folder)}"
    )


def _pickled(folder: Path) -> str:
    """The end of a message: weights in a form that is never read, for to read it is to run it."""
    names = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
    if not names:
        return ""
    return (
        f". Pickled weights ({names[0]}{' and others' if len(names) > 1 else ''}) are never read, for they can run "
        "code; where you trust them, transformers converts them: AutoModelForCausalLM.from_pretrained(FOLDER)"
        ".save_pretrained(NEW_FOLDER) writes safetensors"
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile.open(path)
    config = _named(path, lambda: config_from_gguf(file.metadata, file.tensors))
    _check_depth(path, f"{file.metadata['general.architecture']}.block_count", config, file)
    return Checkpoint(str(path), config, file, model_class(config).gguf_names(config))


def _open_safetensors(weights: Path, overrides: Mapping[str, object]) -> Checkpoint:
    config = read_config(weights.parent, overrides)
    sharded = weights.name == INDEX_NAME
    file: WeightFiles = ShardedSafetensors.open(weights) if sharded else SafetensorsFile.open(weights)
    _check_depth(weights.parent / "config.json", "num_hidden_layers", config, file)
    names = _without_prefix(model_class(config), file.tensors)
    return Checkpoint(str(weights), with_stored_head(config, file, names), file, names)


def _without_prefix(family: type[Model[Any]], tensors: Collection[str]) -> dict[str, GgufName]:
    """A model saved without its head has names without the prefix."""
    prefix = family.base_prefix
    if any(name.startswith(prefix) for name in tensors):
        return {}
    return {prefix + name: GgufName(name) for name in tensors if name != family.head_name}


def read_config(folder: Path, overrides: Mapping[str, object] | None = None) -> ModelConfig:
    """From the config.json that must lie beside safetensors files, with what is laid over it. Raises
    ModelNotFoundError, ModelFormatError."""
    path = folder / "config.json"
    kind = file_kind(path)
    if kind is None:
        raise ModelNotFoundError(f"{folder}: config.json must lie beside the safetensors files, it is missing")
    if kind != REGULAR_FILE:
        raise ModelFormatError(f"{path}: expected a regular file, got {kind}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: expected JSON in UTF-8, got {type(error).__name__}: {error}") from None
    if not isinstance(values, dict):
        raise ModelFormatError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return _named(folder, lambda: config_from_hf({**values, **(overrides or {})}))


def _check_depth(path: Path, key: str, config: ModelConfig, file: WeightFiles) -> None:
    """Every layer has tensors: more layers than tensors is a broken file, seen before names are made for each layer."""
    if config.num_layers > len(file.tensors):
        raise ModelFormatError(
            f"{path}: {key} must be at most {len(file.tensors)}, the number of tensors in {file.path}, "
            f"got {config.num_layers}"
        )


def _named(path: Path, read: Callable[[], ModelConfig]) -> ModelConfig:
    """Errors of a config say which file it came from."""
    try:
        return read()
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from None


def _unpermuted(stored: StoredTensor, num_heads: int) -> StoredTensor:
    num_rows = stored.shape[0]
    if num_rows % (2 * num_heads):
        raise ModelFormatError(
            f"tensor {stored.name!r} must have rows for {num_heads} heads of even size, got shape {list(stored.shape)}"
        )
    neighbours = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return rows_of(stored, neighbours.swapaxes(1, 2).reshape(-1))
