"""Starts with packed weights on disk, and starts without: the same bits, whatever lies in the folder."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from forced import last_logits
from isas import EVERY_ISA
from tiny_model import tiny_config, tiny_weights, to_bfloat16, write_json, write_tiny_llama
from weights.packed_runs import PROMPT, names, plain, run, the_file
from weights.tiny_gguf import write_tiny_gguf

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.weights import cache_writer, packed_file
from fastpaged.weights.packed_cache import PackedCache
from fastpaged.weights.packed_file import PackedFile
from fastpaged.worker.worker import Worker


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights are kept."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FASTPAGED_CACHE", str(folder))
    return folder


@pytest.fixture(params=["safetensors", "tied safetensors", "gguf", "gguf of Q8_0"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "gguf":
        return write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights())
    if request.param == "gguf of Q8_0":
        return write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights(), "Q8_0")
    return write_tiny_llama(tmp_path / "model", tokenizer=False, tied="tied" in request.param)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", tokenizer=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_answers_are_the_same_bits_with_the_cache_and_without(isa: str, dtype: str, model: Path, folder: Path) -> None:
    expected = plain(model, isa=isa, dtype=dtype)
    assert names(folder) == set()
    assert run(model, isa=isa, dtype=dtype) == (expected, False)
    assert the_file(folder).suffix == ".weights"
    assert run(model, isa=isa, dtype=dtype) == (expected, True)


def test_instruction_sets_share_a_file_if_and_only_if_they_pack_into_the_same_bytes(llama: Path, folder: Path) -> None:
    weight = np.arange(40 * 70, dtype=np.uint16).reshape(40, 70)
    layouts: dict[str, bytes] = {}
    for isa in _core.supported_isas():
        device = _core.CpuDevice(isa, 1)
        packed = bytes(memoryview(_core.PackedLinear(device, [weight])))
        assert layouts.setdefault(device.weight_layout, packed) == packed
        assert run(llama, isa=isa)[0] == plain(llama, isa=isa)
    assert len(set(layouts.values())) == len(layouts) == len(names(folder))


LAYOUTS = {
    "rows16-1": "8422ebd026e15d2e7772143809c1b66c72b81804f63559aafda85e491639d45a",
    "panels16x32-1": "22dd125af8838e057d0d40db2c154e2193f9b84673671f288a95943f6f991e92",
}


def test_a_layout_of_weights_that_changes_has_a_new_name() -> None:
    """Files of an earlier build are found by it: whoever changes the bytes counts it up, and puts their digest here."""
    for isa in _core.supported_isas():
        device = _core.CpuDevice(isa, 2)
        digest = hashlib.sha256()
        for dtype, element in (("bfloat16", np.uint16), ("float32", np.float32)):
            for shape in ((1, 1), (40, 70), (33, 128), (2, 40), (72, 70)):
                weight: npt.NDArray[Any] = np.arange(math.prod(shape)).astype(element).reshape(shape)
                is_gated = shape in ((2, 40), (72, 70))
                digest.update(memoryview(_core.PackedLinear(device, [weight], dtype, is_gated)))
        assert (device.weight_layout, digest.hexdigest()) in LAYOUTS.items()


def test_progress_reaches_its_end_from_the_cache_too(llama: Path) -> None:
    run(llama)
    calls: list[tuple[str, int, int]] = []
    config = EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8)
    Worker(config, lambda *call: calls.append(call)).close()
    total = len(tiny_weights())
    assert calls[-1] == ("loading weights", total, total)


@pytest.mark.parametrize("change", ["bytes", "touch", "replace"])
def test_a_model_file_that_changed_is_packed_anew_and_the_old_file_removed(
    change: str, llama: Path, folder: Path
) -> None:
    run(llama)
    old = the_file(folder)
    file = llama / "model.safetensors"
    other = write_tiny_llama(llama.parent / "other", seed=1, tokenizer=False) / "model.safetensors"
    if change == "bytes":
        file.write_bytes(other.read_bytes())
    elif change == "replace":
        times = file.stat()
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.rename(file)
    else:
        os.utime(file, ns=(1, 1))
    assert run(llama) == (plain(llama), False)
    assert the_file(folder) != old
    assert run(llama)[1]


def test_a_config_that_changed_is_another_file_and_the_old_one_stays(llama: Path, folder: Path) -> None:
    run(llama)
    write_json(llama / "config.json", tiny_config() | {"rms_norm_eps": 0.01})
    assert run(llama) == (plain(llama), False)
    assert run(llama, hf_overrides={"rms_norm_eps": 0.25}) == (plain(llama, hf_overrides={"rms_norm_eps": 0.25}), False)
    assert len(names(folder)) == 3


def damaged(data: bytes) -> dict[str, bytes]:
    end_of_header = 56 + int.from_bytes(data[8:16], "little")
    places = {f"byte {at}": at for at in (0, 7, 8, 16, 24, 55, 56, 80, end_of_header - 1)}
    changed = {name: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for name, at in places.items()}
    cut = {f"cut at {at}": data[:at] for at in (0, 1, 55, 56, 100, end_of_header, len(data) - 1)}
    return {**changed, **cut, "longer": data + b"\0", "another header": b"{}" + data[2:]}


def test_a_damaged_file_is_found_and_made_anew(llama: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = run(llama)
    path = the_file(folder)
    whole = path.read_bytes()
    for name, data in damaged(whole).items():
        path.write_bytes(data)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert run(llama) == (expected, False), name
        assert "are not used, and made anew" in caplog.text
        assert path.read_bytes() == whole


def rewritten(data: bytes, change: Callable[[Any], Any]) -> bytes:
    """The file with another header and the checksum of that one; the pieces stay where they are."""
    length = int.from_bytes(data[8:16], "little")
    header = json.dumps(change(json.loads(data[56 : 56 + length])), separators=(",", ":")).encode().ljust(length)
    return packed_file._start(header, len(data)) + header + data[56 + len(header) :]


def changed_piece(linear: bool, **values: Any) -> Callable[[Any], Any]:
    """Another kind, dtype, shape, offset or number of bytes for one of the pieces."""

    def change(header: Any) -> Any:
        name = next(name for name, piece in header["pieces"].items() if ("linear" in piece[0]) == linear)
        piece = dict(zip(("kind", "dtype", "shape", "offset", "num_bytes"), header["pieces"][name], strict=True))
        header["pieces"][name] = list((piece | values).values())
        return header

    return change


WRONG_HEADERS: dict[str, Callable[[Any], Any]] = {
    "empty": lambda _: {},
    "a list": lambda _: [],
    "a number": lambda _: 1,
    "no pieces": lambda header: {"key": header["key"]},
    "pieces in a list": lambda header: header | {"pieces": [1]},
    "a short piece": lambda header: header | {"pieces": {"a": ["array", "float32", [1]]}},
    "no key": lambda header: {"pieces": header["pieces"]},
    "a key that is text": lambda header: header | {"key": "x"},
    "a key without sources": lambda header: header | {"key": {}},
    "sources that are none": lambda header: header | {"key": {"sources": [[]]}},
    "an array of other size": changed_piece(False, shape=[1]),
    "an array of no such dtype": changed_piece(False, dtype="object"),
    "a linear weight of other size": changed_piece(True, num_bytes=64),
    "a linear weight of other shape": changed_piece(True, shape=[1, 1]),
    "a linear weight of odd gates": changed_piece(True, kind="gated linear", shape=[5, 16]),
    "a linear weight without size": changed_piece(True, shape=[0, 16]),
    "a linear weight of no size": changed_piece(True, shape=[-4, -16]),
    "a linear weight of half a row": changed_piece(True, shape=[1.5, 16]),
    "a linear weight of one side": changed_piece(True, shape=[16]),
    "a linear weight of no such dtype": changed_piece(True, dtype=["float32"]),
}


@pytest.mark.parametrize("name", WRONG_HEADERS)
def test_a_file_with_a_right_checksum_and_a_header_that_cannot_be_is_made_anew(
    name: str, llama: Path, folder: Path
) -> None:
    expected, _ = run(llama)
    path = the_file(folder)
    whole = path.read_bytes()
    path.write_bytes(rewritten(whole, lambda header: header))
    assert run(llama) == (expected, True)
    path.write_bytes(rewritten(whole, WRONG_HEADERS[name]))
    assert len(PackedCache(folder, 0).files()) == 1
    assert run(llama) == (expected, False)
    assert path.read_bytes() == whole
    path.write_bytes(rewritten(whole, WRONG_HEADERS[name]))
    PackedCache(folder, 0).clear()
    assert names(folder) == set()


def test_a_file_with_a_right_checksum_and_another_key_is_not_used(llama: Path, folder: Path) -> None:
    run(llama)
    first = the_file(folder)
    other = write_tiny_llama(llama.parent / "other", seed=1, tokenizer=False)
    run(other)
    (second,) = names(folder) - {first.name}
    first.rename(folder / second)
    assert run(other) == (plain(other), False)


def test_a_model_that_changed_while_it_was_read_is_not_kept(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8)
    Worker(config, lambda *_: os.utime(llama / "model.safetensors", ns=(1, 1))).close()
    assert names(folder) == set()


def mappings_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_close_unmaps_and_nothing_of_the_source_is_mapped(llama: Path, folder: Path) -> None:
    config = EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8)
    run(llama)
    path = the_file(folder)
    first, second = Worker(config), Worker(config)
    assert mappings_of(path) == 2
    assert mappings_of(llama / "model.safetensors") == 0
    first.close()
    assert mappings_of(path) == 1
    expected = plain(llama, max_model_len=512)
    path.unlink()  # what is mapped stays
    assert last_logits(second, config, [PROMPT]).tobytes() == expected
    second.close()
    assert mappings_of(path) == 0


def test_pieces_lie_where_the_header_says(llama: Path, folder: Path) -> None:
    run(llama)
    file = PackedFile.open(the_file(folder))
    weights = tiny_weights()
    np.testing.assert_array_equal(file.array("vector model.norm.weight"), weights["model.norm.weight"])
    embedding = to_bfloat16(weights["model.embed_tokens.weight"])
    np.testing.assert_array_equal(file.array("table model.embed_tokens.weight"), embedding)
    assert not file.array("vector model.norm.weight").flags.writeable
    ends = [piece.offset + piece.num_bytes for piece in file.pieces.values()]
    begins = [piece.offset for piece in file.pieces.values()]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert all(begin % 4096 == 0 for begin in begins)
    assert json.dumps(file.key)


def test_the_first_request_goes_before_the_writing(llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_writer, "_SECONDS_BEFORE_WRITING", 3600)
    config = EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8)
    worker = Worker(config)
    last_logits(worker, config, [PROMPT])
    assert names(folder) == set()
    worker.close()
    assert len(names(folder)) == 1


@pytest.mark.parametrize("window", [1000, 4096, 100_000])
def test_a_file_is_the_same_whatever_is_written_at_once(
    window: int, llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(llama)
    path = the_file(folder)
    whole = path.read_bytes()
    path.unlink()
    write = os.pwritev

    def some(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        """Less than it was asked for, as systems may."""
        return write(descriptor, [buffers[0][: 1 + len(buffers[0]) // 2]], offset)

    monkeypatch.setattr(packed_file, "_WINDOW", window)
    monkeypatch.setattr(os, "pwritev", some)
    run(llama)
    assert path.read_bytes() == whole
