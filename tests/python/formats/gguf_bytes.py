"""Writes GGUF files field by field, right or wrong: the `gguf` package would not write the wrong ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 7, 8, 10, 12, 13, 14, 30
# kind: its name, values per block, bytes per block
KINDS = {
    F32: ("F32", 1, 4),
    F16: ("F16", 1, 2),
    BF16: ("BF16", 1, 2),
    Q8_0: ("Q8_0", 32, 34),
    Q4_0: ("Q4_0", 32, 18),
    Q4_1: ("Q4_1", 32, 20),
    Q5_0: ("Q5_0", 32, 22),
    Q5_1: ("Q5_1", 32, 24),
    Q4_K: ("Q4_K", 256, 144),
    Q5_K: ("Q5_K", 256, 176),
    Q6_K: ("Q6_K", 256, 210),
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(element: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", element, count) + values


@dataclass(frozen=True)
class Tensor:
    """shape is in the file's order, innermost dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    def directory_line(self) -> bytes:
        shape = struct.pack(f"<I{len(self.shape)}Q", len(self.shape), *self.shape)
        return string(self.name) + shape + struct.pack("<IQ", self.kind, self.offset)


def gguf(
    entries: list[bytes],
    tensors: list[Tensor],
    data: bytes,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_entries: int | None = None,
    alignment: int = 32,
) -> bytes:
    head = magic + struct.pack("<I", version)
    head += struct.pack("<Q", len(tensors) if num_tensors is None else num_tensors)
    head += struct.pack("<Q", len(entries) if num_entries is None else num_entries)
    head += b"".join(entries) + b"".join(tensor.directory_line() for tensor in tensors)
    return head + bytes(-len(head) % alignment) + data
