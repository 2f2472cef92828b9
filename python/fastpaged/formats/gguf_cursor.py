"""Walks the header of a GGUF file. Every length is checked against the file before anything is read or allocated."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fastpaged.formats.mapped_file import MappedFile

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_STRING_TYPE = 8
_ARRAY_TYPE = 9
_BOOL_TYPE = 7
_MAX_ARRAY_DEPTH = 4
_MIN_STRING_BYTES = 8  # its length
_MIN_ARRAY_BYTES = 12  # its element type and its count

# GGUF value type -> little-endian NumPy type. Bools are bytes until they are checked.
_NUMBERS: dict[int, npt.DTypeLike] = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL_TYPE: "u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class GgufCursor:
    """A position in a mapped GGUF file. Every read advances it or raises ModelFormatError and names what was read."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes from here to the file's end."""
        return self.file.size - self.position

    def uint32(self, what: str) -> int:
        """A 32-bit number."""
        return int(_UINT32.unpack_from(self.file.map, self._take(_UINT32.size, what))[0])

    def uint64(self, what: str) -> int:
        """A 64-bit number."""
        return int(_UINT64.unpack_from(self.file.map, self._take(_UINT64.size, what))[0])

    def count(self, what: str, item_bytes: int) -> int:
        """A number of items of at least `item_bytes` each, which therefore the rest of the file bounds."""
        count = self.uint64(what)
        if count > self.remaining // item_bytes:
            expected = f"at most {self.remaining // item_bytes} in the {self.remaining} bytes that are left"
            raise self.file.error(what, expected, count)
        return count

    def string(self, what: str) -> str:
        """A string with its length before it."""
        length = self.uint64(f"{what}, length")
        return self._text(self._take(length, what), length, what)

    def value(self, what: str) -> object:
        """A metadata value: bool, int, float or str, a NumPy array of numbers or bools, a list of strings or arrays."""
        return self._value_of(self.uint32(f"{what}, type"), what, depth=0)

    def _value_of(self, kind: int, what: str, depth: int) -> object:
        if kind in _NUMBERS:
            return self._numbers(kind, 1, what)[0].item()
        if kind == _STRING_TYPE:
            return self.string(what)
        if kind != _ARRAY_TYPE:
            raise self.file.error(f"{what}, type", "a GGUF value type, 0 to 12", kind)
        if depth == _MAX_ARRAY_DEPTH:
            raise self.file.error(what, f"arrays nested at most {_MAX_ARRAY_DEPTH} deep", "deeper ones")
        element = self.uint32(f"{what}, element type")
        if element in _NUMBERS:
            return self._numbers(element, self.count(f"{what}, count", np.dtype(_NUMBERS[element]).itemsize), what)
        if element == _STRING_TYPE:
            return self._strings(self.count(f"{what}, count", _MIN_STRING_BYTES), what)
        count = self.count(f"{what}, count", _MIN_ARRAY_BYTES)
        return [self._value_of(element, what, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int, what: str) -> npt.NDArray[np.generic]:
        dtype = np.dtype(_NUMBERS[kind])
        size = count * dtype.itemsize
        stored = self.file.view(self._take(size, what), size)
        if kind != _BOOL_TYPE:
            numbers: npt.NDArray[np.generic] = stored.copy().view(dtype)  # metadata must not keep the file mapped
            return numbers
        if size and stored.max() > 1:
            raise self.file.error(what, "a bool, 0 or 1", int(stored.max()))
        return stored.astype(np.bool_)

    def _strings(self, count: int, what: str) -> list[str]:
        # Vocabularies hold 100,000s of strings: everything is local, and lengths are checked in line.
        buffer, position, size = self.file.map, self.position, self.file.size
        unpack, prefix = _UINT64.unpack_from, _UINT64.size
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(count):
                begin = position + prefix
                position = begin + unpack(buffer, position)[0]
                if position > size:
                    break
                append(buffer[begin:position].decode())
        except UnicodeDecodeError as error:
            raise self.file.error(f"{what}[{len(strings)}]", "UTF-8", error) from None
        except struct.error:
            pass  # the length itself lies beyond the end
        if len(strings) != count:
            raise self.file.error(f"{what}[{len(strings)}]", "a string within the file", f"the file's end at {size}")
        self.position = position
        return strings

    def _take(self, size: int, what: str) -> int:
        if size > self.remaining:
            raise self.file.error(what, f"{size} bytes at {self.position}", f"the file's end at {self.file.size}")
        begin = self.position
        self.position += size
        return begin

    def _text(self, begin: int, length: int, what: str) -> str:
        try:
            return self.file.map[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            raise self.file.error(what, "UTF-8", error) from None
