from __future__ import annotations

import gc
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

import gguf as reference
import numpy as np
import pytest
from formats.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    KINDS,
    Q2_K,
    Q4_1,
    Q4_K,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    Tensor,
    array,
    entry,
    gguf,
    string,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats import GgufFile, find_gguf

if TYPE_CHECKING:
    from pathlib import Path

ONE_TENSOR = [Tensor("w", (32, 2), F32, 0)]
ONE_TENSOR_DATA = bytes(range(256))


def opened(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return GgufFile.open(path)


def whole_file() -> bytes:
    """Every value type and every kind of tensor."""
    numbers = [
        (kind, struct.pack("<" + form, 1)) for kind, form in zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True)
    ]
    entries = [entry(f"number.{kind}", kind, value) for kind, value in numbers]
    entries += [entry(f"array.{kind}", ARRAY, array(kind, 3, value * 3)) for kind, value in numbers]
    entries.append(entry("text", STRING, string("naïve ☃")))
    entries.append(entry("texts", ARRAY, array(STRING, 3, string("a") + string("") + string("🙂"))))
    nested = array(INT32, 2, struct.pack("<2i", 1, 2)) + array(INT32, 0, b"")
    entries.append(entry("nested", ARRAY, array(ARRAY, 2, nested)))
    tensors, data = [], b""
    for kind, (_, values, size) in KINDS.items():
        data += bytes(-len(data) % 32)  # none after the last: a file cut there is whole
        tensors.append(Tensor(f"t{kind}", (values, 2), kind, len(data)))
        data += bytes((kind + i) % 256 for i in range(2 * size))
    return gguf(entries, tensors, data)


def test_every_value_type_and_kind_of_tensor_is_read(tmp_path: Path) -> None:
    file = opened(tmp_path, whole_file())
    for kind in (*range(8), 10, 11, 12):
        number = file.metadata[f"number.{kind}"]
        assert number == 1
        assert type(number) is (float if kind in (6, 12) else bool if kind == BOOL else int)
        numbers: Any = file.metadata[f"array.{kind}"]
        assert numbers.tolist() == [number] * 3
    assert file.metadata["text"] == "naïve ☃"
    assert file.metadata["texts"] == ["a", "", "🙂"]
    nested: Any = file.metadata["nested"]
    assert [inner.tolist() for inner in nested] == [[1, 2], []]
    for kind, (name, values, size) in KINDS.items():
        tensor = file.tensors[f"t{kind}"]
        assert (tensor.kind, tensor.shape, tensor.data[0], tensor.data.size) == (name, (2, values), kind, 2 * size)


def test_tensors_are_read_only_views_that_outlive_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, gguf([], ONE_TENSOR, ONE_TENSOR_DATA)) as file:
        data = file.tensors["w"].data
    assert file.tensors == {}
    del file
    gc.collect()
    assert data.tobytes() == ONE_TENSOR_DATA
    assert not data.flags.writeable


METADATA = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
        lambda key: key != "general.alignment"
    ),
    st.one_of(
        st.booleans(),
        st.integers(-(2**31), 2**31 - 1),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(METADATA, st.lists(st.sampled_from(["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]), max_size=5))
def test_what_the_gguf_package_writes_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Any], kinds: list[str]
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    metadata = {key: value for key, value in metadata.items() if key not in ("split.count", "general.architecture")}
    writer = reference.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_int32, str: writer.add_string, list: writer.add_array}[
            type(value)
        ]
        add(key, value)
    values = np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64)
    stored = {}
    for i, kind in enumerate(kinds):
        stored[f"t{i}"] = reference.quants.quantize(values + i, reference.GGMLQuantizationType[kind])
        writer.add_tensor(f"t{i}", stored[f"t{i}"], raw_dtype=reference.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile.open(path)
    read = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in file.metadata.items()}
    assert read == metadata | {"general.architecture": "llama"}
    assert list(file.tensors) == list(stored)
    for (name, tensor), kind in zip(file.tensors.items(), kinds, strict=True):
        assert (tensor.kind, tensor.shape) == (kind, (3, 64))
        assert tensor.data.tobytes() == stored[name].tobytes()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole_file())
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(ModelFormatError, match=r"cut\.gguf: .+: expected .+, found .+"):
            GgufFile.open(path)


@settings(deadline=None, max_examples=1000)
@given(st.data())
def test_a_file_with_flipped_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(whole_file())
    positions = st.integers(0, len(content) - 1)
    for position, byte in data.draw(st.dictionaries(positions, st.integers(0, 255), min_size=1, max_size=4)).items():
        content[position] = byte
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(content)
    try:
        file = GgufFile.open(path)
    except ModelFormatError:
        return
    for tensor in file.tensors.values():
        assert tensor.data.nbytes <= len(content)


HUGE = 2**64 - 1
A_WHOLE_TEXT = entry("k", STRING, string("v"))
REFUSED: dict[str, tuple[bytes, str]] = {
    "a wrong magic": (gguf([], [], b"", magic=b"GGML"), r"magic: expected b'GGUF', found b'GGML'"),
    "version 1": (gguf([], [], b"", version=1), r"version: expected one of \(2, 3\).*found 1"),
    "the other byte order": (gguf([], [], b"", version=3 << 24), "version 3 in big-endian order"),
    "more entries than bytes": (gguf([A_WHOLE_TEXT], [], b"", num_entries=HUGE), f"metadata count: .*found {HUGE}"),
    "more tensors than bytes": (
        gguf([], ONE_TENSOR, ONE_TENSOR_DATA, num_tensors=HUGE),
        "tensor count: expected at most",
    ),
    "a text longer than the file": (
        gguf([entry("k", STRING, struct.pack("<Q", HUGE))], [], b""),
        "metadata 'k': expected",
    ),
    "a text in an array longer than the file": (
        gguf([entry("k", ARRAY, array(STRING, 2, string("a") + struct.pack("<Q", HUGE)))], [], b""),
        r"metadata 'k'\[1\]: expected a string within the file",
    ),
    "an array with more numbers than bytes": (
        gguf([entry("k", ARRAY, array(UINT64, HUGE, b""))], [], b""),
        "metadata 'k', count: expected at most",
    ),
    "an array with more texts than bytes": (
        gguf([entry("k", ARRAY, array(STRING, 2**40, b""))], [], b""),
        "metadata 'k', count: expected at most",
    ),
    "arrays without end": (
        gguf([entry("k", ARRAY, array(ARRAY, 1, b"") * 1000)], [], bytes(64)),
        "nested at most 4 deep",
    ),
    "an unknown value type": (gguf([entry("k", 13, bytes(8))], [], b""), "metadata 'k', type: .*found 13"),
    "a bool of 2": (gguf([entry("k", BOOL, b"\2")], [], b""), "expected a bool, 0 or 1, found 2"),
    "a text that is no UTF-8": (gguf([entry("k", STRING, string(b"\xff"))], [], b""), "metadata 'k': expected UTF-8"),
    "a text in an array that is no UTF-8": (
        gguf([entry("k", ARRAY, array(STRING, 1, string(b"\xff")))], [], b""),
        r"metadata 'k'\[0\]: expected UTF-8",
    ),
    "a key twice": (gguf([A_WHOLE_TEXT] * 2, [], b""), "every key once, found 'k' twice"),
    "a part of a split model": (
        gguf([entry("split.count", UINT32, struct.pack("<I", 3))], [], b""),
        "split.count.*found 3",
    ),
    "splits that are no number": (gguf([entry("split.count", STRING, string("3"))], [], b""), "split.count"),
    "an alignment that is no power of two": (
        gguf([entry("general.alignment", UINT32, struct.pack("<I", 24))], ONE_TENSOR, ONE_TENSOR_DATA),
        "general.alignment.*power of two.*found 24",
    ),
    "an alignment that is no number": (
        gguf([entry("general.alignment", FLOAT32, struct.pack("<f", 32))], ONE_TENSOR, ONE_TENSOR_DATA),
        "general.alignment",
    ),
    "a tensor twice": (gguf([], ONE_TENSOR * 2, ONE_TENSOR_DATA), "every name once, found 'w' twice"),
    "an unknown kind": (
        gguf([], [Tensor("w", (32,), 999, 0)], bytes(64)),
        r"'w', kind: expected one of .*Q4_1.*\(999\)",
    ),
    "a kind that is not supported": (gguf([], [Tensor("w", (256,), Q2_K, 0)], bytes(256)), r"found Q2_K \(10\)"),
    "no dimensions": (gguf([], [Tensor("w", (), F32, 0)], bytes(64)), "'w', dimensions: expected 1 to 4, found 0"),
    "five dimensions": (
        gguf([], [Tensor("w", (1,) * 5, F32, 0)], bytes(64)),
        "'w', dimensions: expected 1 to 4, found 5",
    ),
    "a dimension of 0": (gguf([], [Tensor("w", (32, 0), F32, 0)], bytes(64)), "positive dimensions"),
    "a shape beyond 64 bits": (gguf([], [Tensor("w", (2**62, 2**62), F32, 0)], bytes(64)), "'w': expected .* bytes at"),
    "part of a block": (gguf([], [Tensor("w", (48, 2), Q4_1, 0)], bytes(64)), "multiple of 32 for Q4_1, found 48"),
    "part of a block of 256": (gguf([], [Tensor("w", (288,), Q4_K, 0)], bytes(288)), "of 256 for Q4_K, found 288"),
    "a crooked offset": (
        gguf([], [Tensor("w", (8,), F32, 8)], bytes(64)),
        "'w', offset: expected a multiple of 32, found 8",
    ),
    "an offset past the end": (gguf([], [Tensor("w", (8,), F32, 1 << 40)], bytes(64)), "'w': expected 32 bytes at"),
    "tensors over each other": (
        gguf([], [Tensor("a", (16,), F32, 0), Tensor("b", (8,), F32, 32)], bytes(64)),
        "'b', offset: expected at least 64, where tensor 'a' ends, found 32",
    ),
    "nothing": (b"", "expected a model file, found an empty file"),
    "an array one number short": (
        gguf([entry("k", ARRAY, array(UINT8, 9, bytes(8)))], [], b"", alignment=1),
        "metadata 'k', count: expected at most 8 .*, found 9",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(ModelFormatError, match=message):
        opened(tmp_path, content)


@pytest.mark.parametrize(
    "kind", [kind for kind in reference.GGMLQuantizationType if 1 < kind < 30 and kind not in KINDS]
)
def test_a_kind_that_is_not_supported_is_called_by_its_name(
    tmp_path: Path, kind: reference.GGMLQuantizationType
) -> None:
    with pytest.raises(ModelFormatError, match=rf"found {kind.name} \({int(kind)}\)"):
        opened(tmp_path, gguf([], [Tensor("w", (256,), int(kind), 0)], bytes(4096)))


def test_stray_bytes_after_the_last_tensor_are_refused_and_its_padding_is_not(tmp_path: Path) -> None:
    tensor = Tensor("w", (4,), F32, 0)
    assert opened(tmp_path, gguf([], [tensor], bytes(16 + 16))).tensors["w"].shape == (4,)
    for stray in (1, 16, 132):
        with pytest.raises(ModelFormatError, match=f"size: expected .*: {16 + stray} bytes follow the last tensor"):
            opened(tmp_path, gguf([], [tensor], bytes(32 + stray)))
    with pytest.raises(ModelFormatError, match="size: expected .*: 7 bytes follow the last tensor"):
        opened(tmp_path, gguf([], [], bytes(7)))


@pytest.mark.parametrize("name", ["model.gguf", "model"])
def test_a_pipe_in_place_of_a_model_is_refused_without_waiting_for_its_writer(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelNotFoundError, match="model: a named pipe is at .*; it must be a .gguf file or a model"):
        find_gguf(tmp_path / name)
    with pytest.raises(ModelNotFoundError, match="cannot be read as a file: it is a named pipe"):
        GgufFile.open(tmp_path / name)


def test_a_device_or_a_socket_in_place_of_a_model_is_refused_unopened(tmp_path: Path) -> None:
    place = tmp_path / "s.gguf"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(place))  # a socket's path has at most 107 bytes
        for path, kind in ((place, "a socket"), ("/dev/zero", "a character device")):
            with pytest.raises(ModelNotFoundError, match=f"model: {kind} is at"):
                find_gguf(path)
            with pytest.raises(ModelNotFoundError, match=f"it is {kind}"):
                GgufFile.open(path)


def test_a_path_too_long_for_any_file_has_nothing_there() -> None:
    with pytest.raises(ModelNotFoundError, match="model: nothing is at"):
        find_gguf("x" * 10_000)


def test_a_path_that_cannot_be_read_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path, "nul\0.gguf"):
        with pytest.raises(ModelNotFoundError, match=r"model: .* cannot be read as a file"):
            GgufFile.open(path)


def test_the_one_gguf_file_of_a_folder_is_found(tmp_path: Path) -> None:
    assert find_gguf(tmp_path) is None
    first = tmp_path / "a.gguf"
    first.touch()
    assert find_gguf(tmp_path) == find_gguf(first) == first
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelFormatError, match=r"holds 2 GGUF files \(a\.gguf, b\.gguf\)"):
        find_gguf(tmp_path)
    with pytest.raises(ModelNotFoundError, match="^model: nothing is at .*; it must be a .gguf file or a model folder"):
        find_gguf(tmp_path / "c")
