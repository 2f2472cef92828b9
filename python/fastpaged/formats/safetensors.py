"""safetensors files: an 8-byte length, a JSON header of that length, and the tensors' bytes without a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpaged.formats.json_object import parse_json_object
from fastpaged.formats.mapped_file import MappedFile
from fastpaged.formats.stored_tensor import StoredTensor, num_bytes

if TYPE_CHECKING:
    import os
    from types import TracebackType

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own bound
_MAX_DIMENSIONS = 8
_KINDS = ("F32", "F16", "BF16")  # the dtypes whose stored bytes are the kinds of the same name


class SafetensorsFile:
    """The tensors of one .safetensors file, mapped and not copied."""

    def __init__(self, file: MappedFile, metadata: dict[str, str], tensors: dict[str, StoredTensor]) -> None:
        self.path = file.path
        self.metadata = metadata
        self.tensors = tensors
        self.files: tuple[MappedFile, ...] = (file,)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Raises ModelNotFoundError for a file that cannot be read, ModelFormatError for one that is no whole file."""
        file = MappedFile(path)
        header, data_start = _read_header(file)
        metadata = _read_metadata(file, header.pop("__metadata__", {}))
        tensors = {name: _read_tensor(file, name, entry, data_start) for name, entry in header.items()}
        _check_layout(file, header, data_start)
        return cls(file, metadata, tensors)

    def close(self) -> None:
        """Lets go of the file; arrays already handed out stay valid."""
        self.tensors = {}
        self.files = ()

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _read_header(file: MappedFile) -> tuple[dict[str, object], int]:
    if file.size < _LENGTH_BYTES:
        raise file.error("size", f"at least {_LENGTH_BYTES} bytes", file.size)
    length = int.from_bytes(file.map[:_LENGTH_BYTES], "little")
    allowed = min(_MAX_HEADER_BYTES, file.size - _LENGTH_BYTES)
    if not 2 <= length <= allowed:
        raise file.error("header length", f"2 to {allowed} bytes", length)
    header = parse_json_object(file, "header", _LENGTH_BYTES, length)
    return header, _LENGTH_BYTES + length


def _read_metadata(file: MappedFile, entry: object) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise file.error("__metadata__", "an object of strings", repr(entry)[:80])
    return entry


def _read_tensor(file: MappedFile, name: str, entry: object, data_start: int) -> StoredTensor:
    what = f"tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise file.error(what, "an object of dtype, shape and data_offsets", repr(entry)[:80])
    kind = entry["dtype"]
    if kind not in _KINDS:
        raise file.error(f"{what}, dtype", f"one of {', '.join(_KINDS)}", repr(kind)[:80])
    shape = _whole_numbers(entry["shape"], max_length=_MAX_DIMENSIONS)
    if shape is None or 0 in shape:
        expected = f"a list of up to {_MAX_DIMENSIONS} positive whole numbers"
        raise file.error(f"{what}, shape", expected, repr(entry["shape"])[:80])
    offsets = _whole_numbers(entry["data_offsets"], max_length=2)
    data_size = file.size - data_start
    if offsets is None or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_size:
        expected = f"[begin, end] with begin <= end <= {data_size}, the bytes after the header"
        raise file.error(f"{what}, data_offsets", expected, repr(entry["data_offsets"])[:80])
    begin, end = offsets
    size = num_bytes(kind, shape)
    if end - begin != size:
        expected = f"{size} bytes for {kind} of shape {list(shape)}"
        raise file.error(f"{what}, data_offsets", expected, f"{end - begin} bytes ({begin} to {end})")
    return StoredTensor(name, kind, shape, file.view(data_start + begin, size))


def _whole_numbers(value: object, max_length: int) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > max_length:
        return None
    # bool is an int to isinstance, and true is no dimension.
    return tuple(value) if all(type(item) is int and 0 <= item < 1 << 63 for item in value) else None


def _check_layout(file: MappedFile, header: dict[str, object], data_start: int) -> None:
    """Tensors must tile the data: an overlap or a gap means that the header and the bytes do not belong together."""
    ranges = sorted(
        (entry["data_offsets"][0], entry["data_offsets"][1], name)
        for name, entry in header.items()
        if isinstance(entry, dict)
    )
    end_of_last = 0
    for begin, end, name in ranges:
        if begin != end_of_last:
            raise file.error(f"tensor {name!r}, data_offsets", f"a tensor that begins at {end_of_last}", begin)
        end_of_last = end
    if end_of_last != file.size - data_start:
        raise file.error("data", f"{end_of_last} bytes after the header", file.size - data_start)
