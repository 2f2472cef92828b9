"""GGUF files, versions 2 and 3: typed metadata, then named tensors at aligned offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpaged.formats.gguf_cursor import GgufCursor
from fastpaged.formats.mapped_file import MappedFile
from fastpaged.formats.stored_tensor import STORED_KINDS, StoredTensor, num_bytes

if TYPE_CHECKING:
    import os
    from types import TracebackType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMENSIONS = 4
_MIN_ENTRY_BYTES = 13  # an empty key, a type, a value of one byte
_MIN_TENSOR_BYTES = 32  # an empty name, one dimension, kind and offset

# By number, those that are not supported too, so that an error can say what a file holds.
_KIND_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL "
    "IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16"
)


class GgufFile:
    """The metadata and the tensors of one GGUF file; tensors are mapped and not copied.

    `metadata`: key -> bool, int, float, str, NumPy array (of numbers or bools) or list (of strings or arrays).
    `tensors`: name -> StoredTensor.
    """

    def __init__(self, file: MappedFile, metadata: dict[str, object], tensors: dict[str, StoredTensor]) -> None:
        self.path = file.path
        self.metadata = metadata
        self.tensors = tensors
        self.files: tuple[MappedFile, ...] = (file,)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Raises ModelNotFoundError for a file that cannot be read, ModelFormatError for one that is not whole and
        supported."""
        file = MappedFile(path)
        cursor = GgufCursor(file)
        num_tensors = _read_preamble(cursor)
        metadata = _read_metadata(cursor)
        _refuse_splits(file, metadata)
        if num_tensors > cursor.remaining // _MIN_TENSOR_BYTES:
            expected = f"at most {cursor.remaining // _MIN_TENSOR_BYTES} in the {cursor.remaining} bytes that are left"
            raise file.error("tensor count", expected, num_tensors)
        entries = [_TensorEntry(cursor) for _ in range(num_tensors)]
        alignment = _alignment(file, metadata)
        data_start = -(-cursor.position // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for entry in entries:
            if entry.name in tensors:
                raise file.error("tensors", "every name once", f"{entry.name!r} twice")
            tensors[entry.name] = entry.map(file, data_start, alignment)
        _refuse_overlaps(file, entries)
        _refuse_stray_bytes(file, entries, data_start, alignment)
        return cls(file, metadata, tensors)

    def close(self) -> None:
        """Lets go of the file; arrays already handed out stay valid."""
        self.tensors = {}
        self.files = ()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _TensorEntry:
    """One line of the tensor directory."""

    def __init__(self, cursor: GgufCursor) -> None:
        self.name = cursor.string("tensor name")
        self.what = f"tensor {self.name[:80]!r}"
        num_dimensions = cursor.uint32(f"{self.what}, dimensions")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise cursor.file.error(f"{self.what}, dimensions", f"1 to {_MAX_DIMENSIONS}", num_dimensions)
        innermost_first = [cursor.uint64(f"{self.what}, shape") for _ in range(num_dimensions)]
        self.shape = tuple(reversed(innermost_first))
        self.kind_id = cursor.uint32(f"{self.what}, kind")
        self.offset = cursor.uint64(f"{self.what}, offset")
        self.size = 0  # bytes; known once mapped

    def map(self, file: MappedFile, data_start: int, alignment: int) -> StoredTensor:
        names = _KIND_NAMES.split()
        kind = names[self.kind_id] if self.kind_id < len(names) else "kind"
        if kind not in STORED_KINDS:
            raise file.error(f"{self.what}, kind", f"one of {', '.join(STORED_KINDS)}", f"{kind} ({self.kind_id})")
        if 0 in self.shape:
            raise file.error(f"{self.what}, shape", "positive dimensions", list(self.shape))
        try:
            self.size = num_bytes(kind, self.shape)
        except ValueError as error:
            raise file.error(f"{self.what}, shape {list(self.shape)}", "whole blocks", error) from None
        if self.offset % alignment:
            raise file.error(f"{self.what}, offset", f"a multiple of {alignment}", self.offset)
        begin = data_start + self.offset
        if begin + self.size > file.size:
            expected = f"{self.size} bytes at {begin} for {kind} of shape {list(self.shape)}"
            raise file.error(self.what, expected, f"the file's end at {file.size}")
        return StoredTensor(self.name, kind, self.shape, file.view(begin, self.size))


def _read_preamble(cursor: GgufCursor) -> int:
    """Checks magic and version; returns the number of tensors, still unchecked."""
    magic = cursor.uint32("magic").to_bytes(4, "little")
    if magic != _MAGIC:
        raise cursor.file.error("magic", repr(_MAGIC), repr(magic))
    version = cursor.uint32("version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = f"version {swapped} in big-endian order" if swapped in _VERSIONS else version
        raise cursor.file.error("version", f"one of {_VERSIONS}, little-endian", found)
    return cursor.uint64("tensor count")


def _read_metadata(cursor: GgufCursor) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(cursor.count("metadata count", _MIN_ENTRY_BYTES)):
        key = cursor.string("metadata key")
        if key in metadata:
            raise cursor.file.error("metadata", "every key once", f"{key[:80]!r} twice")
        metadata[key] = cursor.value(f"metadata {key[:80]!r}")
    return metadata


def _refuse_splits(file: MappedFile, metadata: dict[str, object]) -> None:
    splits = metadata.get("split.count", 0)
    if type(splits) is not int or splits > 1:
        found = f"{repr(splits)[:80]} parts; merge them first"
        raise file.error("metadata 'split.count'", "a model in one file", found)


def _alignment(file: MappedFile, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        expected = f"a power of two up to {_MAX_ALIGNMENT}"
        raise file.error("metadata 'general.alignment'", expected, repr(alignment)[:80])
    return alignment


def _refuse_overlaps(file: MappedFile, entries: list[_TensorEntry]) -> None:
    end, last = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset < end:
            raise file.error(f"{entry.what}, offset", f"at least {end}, where {last} ends", entry.offset)
        end, last = entry.offset + entry.size, entry.what


def _refuse_stray_bytes(file: MappedFile, entries: list[_TensorEntry], data_start: int, alignment: int) -> None:
    """After the last tensor comes its padding, in most files, and nothing else."""
    end = data_start + max((entry.offset + entry.size for entry in entries), default=0)
    padded = -(-end // alignment) * alignment
    if file.size > padded:
        expected = f"{end} bytes, or {padded} with the padding to a multiple of {alignment}"
        raise file.error("size", expected, f"{file.size}: {file.size - end} bytes follow the last tensor")
