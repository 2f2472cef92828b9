"""Weights in several safetensors files, and the index that says which tensor lies in which of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError
from fastpaged.formats.file_kind import REGULAR_FILE, file_kind
from fastpaged.formats.json_object import parse_json_object
from fastpaged.formats.mapped_file import MappedFile
from fastpaged.formats.safetensors import SafetensorsFile

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from fastpaged.formats.stored_tensor import StoredTensor

INDEX_NAME = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 100_000_000  # as of one file's header
_SUFFIX = ".safetensors"


class ShardedSafetensors:
    """The tensors of all the files that an index names, mapped and not copied. `path` is the index's."""

    def __init__(self, path: str, files: tuple[MappedFile, ...], tensors: dict[str, StoredTensor]) -> None:
        self.path = path
        self.files = files
        self.tensors = tensors

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ShardedSafetensors:
        """Raises ModelNotFoundError for an index that cannot be read, ModelFormatError for one that is broken or does
        not agree with the files beside it."""
        index = Path(path)
        weight_map = read_weight_map(index)
        tensors: dict[str, StoredTensor] = {}
        homes: dict[str, str] = {}
        files: list[MappedFile] = []
        for shard in dict.fromkeys(weight_map.values()):
            opened = _open_shard(index, shard, weight_map)
            files += opened.files
            for name, stored in opened.tensors.items():
                if name in tensors:
                    raise _error(index, name, "one file that holds it", f"it in both {homes[name]!r} and {shard!r}")
                tensors[name] = stored
                homes[name] = shard
        _check_homes(index, weight_map, homes)
        return cls(str(path), tuple(files), tensors)

    def close(self) -> None:
        """Lets go of the files; arrays already handed out stay valid."""
        self.tensors = {}
        self.files = ()


def read_weight_map(path: str | os.PathLike[str]) -> dict[str, str]:
    """Tensor name -> name of the file beside the index. Errors as ShardedSafetensors.open()."""
    file = MappedFile(path)
    if file.size > _MAX_INDEX_BYTES:
        raise file.error("size", f"at most {_MAX_INDEX_BYTES} bytes", file.size)
    weight_map = parse_json_object(file, "index", 0, file.size).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise file.error("weight_map", "an object that names a file for every tensor", repr(weight_map)[:80])
    for name, shard in weight_map.items():
        if not _is_plain_name(shard):
            expected = f"the name of a {_SUFFIX} file in the same folder"
            raise file.error(f"weight_map {name[:80]!r}", expected, repr(shard)[:80])
    return weight_map


def _is_plain_name(shard: object) -> bool:
    """Whatever could lead out of the folder is none."""
    return isinstance(shard, str) and shard.endswith(_SUFFIX) and not set(shard) & set("/\\\0")


def _open_shard(index: Path, shard: str, weight_map: Mapping[str, str]) -> SafetensorsFile:
    path = index.parent / shard
    kind = file_kind(path)
    if kind != REGULAR_FILE:
        name = next(name for name, file in weight_map.items() if file == shard)
        raise _error(index, name, f"the file {shard!r} beside the index", kind or "no such file")
    return SafetensorsFile.open(path)


def _check_homes(index: Path, weight_map: Mapping[str, str], homes: Mapping[str, str]) -> None:
    """The index and the files must say the same, or one of them belongs to another model."""
    for name, shard in weight_map.items():
        if homes.get(name) != shard:
            found = f"it in {homes[name]!r}" if name in homes else "it in none of the files"
            raise _error(index, name, f"this tensor in {shard!r}", found)
    for name, shard in homes.items():
        if name not in weight_map:
            raise _error(index, name, f"an entry for this tensor, which is in {shard!r}", "none")


def _error(index: Path, name: str, expected: str, found: str) -> ModelFormatError:
    return ModelFormatError(f"{index}: weight_map {name[:80]!r}: expected {expected}, found {found}")
