from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats import SafetensorsFile

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"F32": 4, "F16": 2, "BF16": 2}


def content(header: object, data: bytes, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype: object, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def opened(tmp_path: Path, raw: bytes) -> SafetensorsFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    return SafetensorsFile.open(path)


SPECIFICATIONS = st.dictionaries(
    st.text(max_size=20).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(1, 5), max_size=4)),
    max_size=6,
)


@settings(deadline=None)
@given(SPECIFICATIONS, st.dictionaries(st.text(max_size=9), st.text(max_size=9), min_size=1))
def test_what_the_safetensors_package_writes_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str]
) -> None:
    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    raw = {}
    for index, (name, (kind, shape)) in enumerate(tensors.items()):
        raw[name] = bytes((index + i) % 256 for i in range(SIZES[kind] * math.prod(shape)))
    written = {
        name: torch.frombuffer(bytearray(raw[name]), dtype=dtypes[kind]).reshape(shape)
        for name, (kind, shape) in tensors.items()
    }
    path = tmp_path_factory.getbasetemp() / "written.safetensors"
    path.write_bytes(safetensors.torch.save(written, metadata))
    file = SafetensorsFile.open(path)
    assert file.metadata == metadata
    assert set(file.tensors) == set(tensors)
    for name, (kind, shape) in tensors.items():
        assert (file.tensors[name].kind, file.tensors[name].shape) == (kind, tuple(shape))
        assert file.tensors[name].data.tobytes() == raw[name]
        assert not file.tensors[name].data.flags.writeable


WHOLE = content(
    {"__metadata__": {"format": "pt"}, "a": tensor("BF16", [2, 3], 0, 12), "b": tensor("F32", [], 12, 16)},
    bytes(range(16)),
)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, WHOLE)
    for length in range(len(WHOLE)):
        with pytest.raises(ModelFormatError, match=r"model\.safetensors: .+: expected .+, found .+"):
            opened(tmp_path, WHOLE[:length])


@settings(deadline=None, max_examples=1000)
@given(st.dictionaries(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), min_size=1, max_size=3))
def test_a_file_with_flipped_bytes_is_refused_or_read_as_the_safetensors_package_reads_it(
    tmp_path_factory: pytest.TempPathFactory, flips: dict[int, int]
) -> None:
    raw = bytearray(WHOLE)
    for position, byte in flips.items():
        raw[position] = byte
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(raw)
    try:
        file = SafetensorsFile.open(path)
    except ModelFormatError:
        return
    deserialized = safetensors.deserialize(bytes(raw))  # type: ignore[no-untyped-call]
    expected = {name: (info["shape"], bytes(info["data"])) for name, info in deserialized}
    assert {name: (list(t.shape), t.data.tobytes()) for name, t in file.tensors.items()} == expected


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "expected a model file, found an empty file"),
    "less than a length": (b"\1\2\3", "size: expected at least 8 bytes, found 3"),
    "a header longer than the file": (content({}, b"", length=2**63), "header length: expected 2 to 2 bytes"),
    "a header of 1 byte": (content({}, b"", length=1), "header length"),
    "a header that is no JSON": (content(b"{]", b""), "header: expected JSON in UTF-8"),
    "a header that is no UTF-8": (content(b'{"\xff":1}', b""), "header: expected JSON in UTF-8"),
    "a header that nests without end": (content(b"[" * 100_000, b""), "header: expected JSON"),
    "a header with a number without end": (content(b'{"a":' + b"9" * 100_000 + b"}", b""), "header: expected JSON"),
    "a header that is a list": (content([], b""), "header: expected a JSON object, found list"),
    "a name twice": (content(b'{"a":1,"a":2}', b""), "every name once, found 'a' twice"),
    "metadata that is no object of strings": (content({"__metadata__": {"a": 1}}, b""), "__metadata__"),
    "a tensor that is a number": (content({"a": 1}, b""), "tensor 'a': expected an object of dtype, shape"),
    "a tensor without a shape": (content({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), "tensor 'a'"),
    "a dtype that is not supported": (content({"a": tensor("I64", [1], 0, 8)}, bytes(8)), "dtype: expected one of F32"),
    "a dtype that is a list": (content({"a": tensor([], [1], 0, 8)}, bytes(8)), "dtype"),
    "a negative dimension": (content({"a": tensor("F32", [-1], 0, 4)}, bytes(4)), "'a', shape"),
    "a dimension of true": (content({"a": tensor("F32", [True], 0, 4)}, bytes(4)), "'a', shape"),
    "a dimension of 0": (content({"a": tensor("F32", [0], 0, 0)}, b""), "'a', shape"),
    "nine dimensions": (content({"a": tensor("F32", [1] * 9, 0, 4)}, bytes(4)), "'a', shape"),
    "offsets the wrong way": (content({"a": tensor("F32", [1], 4, 0)}, bytes(4)), "'a', data_offsets"),
    "three offsets": (
        content({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, bytes(8)),
        "'a', data_offsets",
    ),
    "offsets past the end": (content({"a": tensor("F32", [2], 0, 8)}, bytes(4)), "'a', data_offsets: .*end <= 4"),
    "offsets of another size": (
        content({"a": tensor("F32", [2], 0, 4)}, bytes(4)),
        r"expected 8 bytes for F32 of shape \[2\], found 4 bytes",
    ),
    "tensors over each other": (
        content({"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [1], 4, 8)}, bytes(8)),
        "'b', data_offsets: expected a tensor that begins at 8, found 4",
    ),
    "a gap": (content({"a": tensor("F32", [1], 4, 8)}, bytes(8)), "begins at 0, found 4"),
    "bytes after the last tensor": (content({"a": tensor("F32", [1], 0, 4)}, bytes(8)), "data: expected 4 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(tmp_path: Path, case: str) -> None:
    raw, message = REFUSED[case]
    with pytest.raises(ModelFormatError, match=message):
        opened(tmp_path, raw)


def test_an_absent_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="cannot be read as a file"):
        SafetensorsFile.open(tmp_path / "absent.safetensors")


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, WHOLE) as file:
        data = file.tensors["a"].data
    assert file.tensors == {}
    assert data.tolist() == list(range(12))
