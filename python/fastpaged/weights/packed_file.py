"""One file of weights as an engine keeps them, to be mapped by the next one.

    8 bytes   magic                 8 bytes   length of the header
    8 bytes   length of the file    32 bytes  SHA-256 of these three and the header
    header    JSON: {"key": ..., "pieces": {name: [kind, dtype, shape, offset, bytes]}}
    pieces    each at a multiple of 4096 bytes from the start of the file, zeros between them

All numbers are little-endian. The file is written in windows of whole huge pages, wherever in them a piece begins: a
kernel that keeps large pages of files then maps it in these, as it does anonymous memory. The checksum covers the
header, not the pieces: that their bytes are those that were written is left to the file system, as it is for the model
files they stand for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastpaged import _core

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

    import numpy.typing as npt

    Array = npt.NDArray[Any]  # uint16 (the bits of bfloat16) or float32
    Kept = _core.PackedLinear | Array

_MAGIC = b"FPWGHT01"
_START = struct.Struct("<8sQQ32s")
_ALIGNMENT = 4096
_MAX_HEADER_BYTES = 1 << 26
_HUGE_PAGE = 1 << 21
_WINDOW = 8 * _HUGE_PAGE
_GATED = "gated linear"
_LINEAR_KINDS = ("linear", _GATED)
_ARRAY_DTYPES = ("uint16", "float32")
_LINEAR_DTYPES = ("bfloat16", "float32")
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # which no pipe holds up


class UnusablePackedFileError(Exception):
    """Not a whole packed file, or not ours to trust; the text says why."""


class Piece(NamedTuple):
    """Where one thing lies. kind: "linear" or "gated linear", of shape [out_features, in_features]; or "array"."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class PackedFile:
    """A mapped packed file. What it hands out keeps the mapping alive for as long as it lives."""

    def __init__(self, key: Mapping[str, object], pieces: Mapping[str, Piece], mapped: mmap.mmap) -> None:
        self.key = key
        self.pieces = pieces
        self._map = mapped

    @classmethod
    def open(cls, path: Path) -> PackedFile:
        """Raises UnusablePackedFileError for a file that is cut, changed, or another user's to write; OSError where
        there is none."""
        descriptor = os.open(path, _READ_FLAGS)
        try:
            size = _checked_size(os.fstat(descriptor))
            key, pieces = _read_header(descriptor, size)
            mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return cls(key, pieces, mapped)

    def check_linears(self, device: _core.CpuDevice) -> None:
        """Raises UnusablePackedFileError where a linear weight has not the bytes that the device would read of it."""
        for name, piece in self.pieces.items():
            if piece.kind not in _LINEAR_KINDS:
                continue
            try:
                num_bytes = _core.packed_bytes(
                    device,
                    out_features=piece.shape[0],
                    in_features=piece.shape[1],
                    dtype=piece.dtype,
                    gated=piece.kind == _GATED,
                )
            except (TypeError, ValueError) as error:
                raise UnusablePackedFileError(f"its piece {name!r} cannot be: {error}") from error
            if piece.num_bytes != num_bytes:
                raise UnusablePackedFileError(f"its piece {name!r} must have {num_bytes} bytes: {piece}")

    def array(self, name: str) -> Array:
        """Read-only, in the shape and dtype it was written in."""
        piece = self.pieces[name]
        count = math.prod(piece.shape)
        return np.frombuffer(self._map, np.dtype(piece.dtype), count, piece.offset).reshape(piece.shape)

    def linear(self, name: str, device: _core.CpuDevice) -> _core.PackedLinear:
        """REQUIRES: packed by a device of the same weight_layout. ValueError where check_linears() would raise."""
        piece = self.pieces[name]
        data = np.frombuffer(self._map, np.uint8, piece.num_bytes, piece.offset)
        out_features, in_features = piece.shape
        return _core.PackedLinear.from_packed(
            device,
            data,
            out_features=out_features,
            in_features=in_features,
            dtype=piece.dtype,
            gated=piece.kind == _GATED,
        )

    def advise(self) -> None:
        """Huge pages for what is read as a whole; of tables, rows come in when they are read, and little else."""
        with contextlib.suppress(AttributeError, OSError):  # where the system has no such thing
            self._map.madvise(mmap.MADV_HUGEPAGE)
            for piece in self.pieces.values():
                if piece.kind == "array" and piece.num_bytes >= _HUGE_PAGE:
                    self._map.madvise(mmap.MADV_NOHUGEPAGE, piece.offset, piece.num_bytes)


class Layout:
    """What a packed file will hold, and where."""

    def __init__(self, key: Mapping[str, object], kept: Mapping[str, Kept]) -> None:
        self._kept = dict(kept)
        sizes = {name: _bytes_of(value).nbytes for name, value in kept.items()}
        # Offsets count from the end of the header, whose length they are part of, until it is known.
        pieces, _ = _placed(kept, sizes, 0)
        begin = _rounded(_START.size + len(_header(key, pieces)) + 16 * len(pieces))
        self.pieces, self.num_bytes = _placed(kept, sizes, begin)
        header = _header(key, self.pieces)
        self._start = _start(header, self.num_bytes) + header

    def windows(self) -> Iterator[tuple[int, list[memoryview]]]:
        """(offset, what to write there, one behind the other), in order of offset, each a window of the file."""
        offset, held, room = 0, [], _WINDOW
        for data in self._all_bytes():
            begin = 0
            while begin < len(data):
                part = data[begin : begin + room]
                held.append(part)
                begin += len(part)
                room -= len(part)
                if room == 0:
                    yield offset, held
                    offset, held, room = offset + _WINDOW, [], _WINDOW
        if held:
            yield offset, held

    def _all_bytes(self) -> Iterator[memoryview]:
        yield memoryview(self._start)
        end = len(self._start)
        for name, piece in self.pieces.items():
            yield memoryview(bytes(piece.offset - end))
            yield _bytes_of(self._kept[name])
            end = piece.offset + piece.num_bytes


def is_packed_file(path: Path) -> bool:
    """By its first bytes: whole or damaged, it is none of another program's."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError:
        return False
    try:
        return os.pread(descriptor, len(_MAGIC), 0) == _MAGIC
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _bytes_of(value: Kept) -> memoryview:
    whole = memoryview(value) if isinstance(value, _core.PackedLinear) else value.data
    return whole.cast("B")


def _placed(kept: Mapping[str, Kept], sizes: Mapping[str, int], begin: int) -> tuple[dict[str, Piece], int]:
    pieces: dict[str, Piece] = {}
    end = begin
    for name, value in kept.items():
        offset = _rounded(end)
        if isinstance(value, _core.PackedLinear):
            kind, dtype, shape = _LINEAR_KINDS[value.gated], value.dtype, (value.out_features, value.in_features)
        else:
            kind, dtype, shape = "array", value.dtype.name, value.shape
        pieces[name] = Piece(kind, dtype, shape, offset, sizes[name])
        end = offset + sizes[name]
    return pieces, end


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _header(key: Mapping[str, object], pieces: Mapping[str, Piece]) -> bytes:
    return json.dumps({"key": key, "pieces": pieces}, separators=(",", ":")).encode("ascii")


def _start(header: bytes, num_bytes: int) -> bytes:
    numbers = _START.pack(_MAGIC, len(header), num_bytes, bytes(32))
    return _START.pack(_MAGIC, len(header), num_bytes, hashlib.sha256(numbers + header).digest())


def _checked_size(status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise UnusablePackedFileError("it is no regular file")
    if status.st_uid != os.geteuid():
        raise UnusablePackedFileError(f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusablePackedFileError("others than its owner may write it")
    if status.st_size < _START.size:
        raise UnusablePackedFileError(f"it has {status.st_size} bytes")
    return status.st_size


def _read_header(descriptor: int, size: int) -> tuple[dict[str, object], dict[str, Piece]]:
    start = os.pread(descriptor, _START.size, 0)
    magic, header_bytes, num_bytes, digest = _START.unpack(start)
    if magic != _MAGIC:
        raise UnusablePackedFileError(f"it begins with {magic!r}")
    if num_bytes != size:
        raise UnusablePackedFileError(f"it has {size} bytes of {num_bytes}")
    if not 0 < header_bytes <= min(_MAX_HEADER_BYTES, size - _START.size):
        raise UnusablePackedFileError(f"its header would be {header_bytes} bytes long")
    header = os.pread(descriptor, header_bytes, _START.size)
    if _start(header, num_bytes)[-32:] != digest:
        raise UnusablePackedFileError("its header is not what was written")
    try:
        key, pieces = _parsed(header)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # whatever else JSON can say
        raise UnusablePackedFileError(f"its header is none of a packed file: {error!r}") from error
    for name, piece in pieces.items():
        _check_piece(name, piece, size)
    return key, pieces


def _parsed(header: bytes) -> tuple[dict[str, object], dict[str, Piece]]:
    values = json.loads(header)
    pieces = {
        name: Piece(kind, dtype, tuple(shape), offset, num_bytes)
        for name, (kind, dtype, shape, offset, num_bytes) in values["pieces"].items()
    }
    return dict(values["key"].items()), pieces


def _check_piece(name: str, piece: Piece, size: int) -> None:
    """The checksum says that we wrote it; this, that it is safe to read whoever did. Of linear weights, whose size is
    for a device to say, PackedFile.check_linears() does the rest."""
    numbers = [*piece.shape, piece.offset, piece.num_bytes]
    fits = all(type(number) is int and number >= 0 for number in numbers)
    if fits and piece.kind == "array":
        fits = (
            piece.dtype in _ARRAY_DTYPES and piece.num_bytes == math.prod(piece.shape) * np.dtype(piece.dtype).itemsize
        )
    elif fits:
        fits = piece.kind in _LINEAR_KINDS and piece.dtype in _LINEAR_DTYPES and len(piece.shape) == 2
    fits = fits and piece.num_bytes > 0 and piece.offset % _ALIGNMENT == 0 and piece.offset + piece.num_bytes <= size
    if not fits:
        raise UnusablePackedFileError(f"its piece {name!r} cannot be: {piece}")
