"""One file of weights as an engine keeps them, to be mapped by the next one.

    8 bytes   magic                 8 bytes   length of the header
    8 bytes   length of the file    32 bytes  SHA-256 of these three and the header
    header    JSON: {"key": ..., "pieces": {name: [kind, dtype, shape, offset, bytes]}}
    pieces    each at a multiple of 4096 bytes from the start of the file, zeros between them

All numbers are little-endian. The checksum covers the header, not the pieces: that their bytes are those that were
written is left to the file system, as it is for the model files they stand for.
"""

from __future__ import annotations

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
_WRITTEN_AT_ONCE = 1 << 24
_GATED = "gated linear"
_LINEAR_KINDS = ("linear", _GATED)
_ARRAY_DTYPES = ("uint16", "float32")
_LINEAR_DTYPES = {"bfloat16": 2, "float32": 4}


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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = _checked_size(os.fstat(descriptor))
            key, pieces = _read_header(descriptor, size)
            mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return cls(key, pieces, mapped)

    def array(self, name: str) -> Array:
        """Read-only, in the shape and dtype it was written in."""
        piece = self.pieces[name]
        count = math.prod(piece.shape)
        return np.frombuffer(self._map, np.dtype(piece.dtype), count, piece.offset).reshape(piece.shape)

    def linear(self, name: str, device: _core.CpuDevice) -> _core.PackedLinear:
        """REQUIRES: it was packed by a device of the same weight_layout."""
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

    def read_ahead(self) -> None:
        """Asks the system to have the linear weights at hand soon; rows of tables come in when they are read."""
        if hasattr(self._map, "madvise"):
            for piece in self.pieces.values():
                if piece.kind in _LINEAR_KINDS:
                    self._map.madvise(mmap.MADV_WILLNEED, piece.offset, piece.num_bytes)


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

    def chunks(self) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) to write, in order of offset, none very long."""
        yield 0, memoryview(self._start)
        for name, piece in self.pieces.items():
            data = _bytes_of(self._kept[name])
            for begin in range(0, piece.num_bytes, _WRITTEN_AT_ONCE):
                yield piece.offset + begin, data[begin : begin + _WRITTEN_AT_ONCE]


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
    values = json.loads(header)
    pieces = {
        name: Piece(kind, dtype, tuple(shape), *rest) for name, (kind, dtype, shape, *rest) in values["pieces"].items()
    }
    for name, piece in pieces.items():
        _check_piece(name, piece, size)
    return values["key"], pieces


def _check_piece(name: str, piece: Piece, size: int) -> None:
    """The checksum says that we wrote it; this, that it is safe to read whoever did."""
    sizes = _LINEAR_DTYPES if piece.kind in _LINEAR_KINDS else {name: np.dtype(name).itemsize for name in _ARRAY_DTYPES}
    element = sizes.get(piece.dtype, 0)
    least = element * math.prod(piece.shape)
    fits = 0 < least <= piece.num_bytes and piece.offset % _ALIGNMENT == 0 and piece.offset >= 0
    if not fits or piece.offset + piece.num_bytes > size:
        raise UnusablePackedFileError(f"its piece {name!r} cannot be: {piece}")
