"""Starts with packed weights on disk, and starts without: the same bits, whatever lies in the folder."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from forced import last_logits
from isas import EVERY_ISA
from tiny_model import tiny_config, tiny_weights, to_bfloat16, write_json, write_tiny_llama
from weights.tiny_gguf import write_tiny_gguf

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.weights import packed_cache, packed_weights
from fastpaged.weights.packed_cache import PackedCache
from fastpaged.weights.packed_file import PackedFile
from fastpaged.worker.worker import Worker

PROMPT = [5, 250, 17, 3, 3, 99, 120, 7]


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


def run(model: Path, **changes: Any) -> tuple[bytes, bool]:
    """Logits, and whether every weight came from the cache."""
    values: dict[str, Any] = {"model": str(model), "isa": "scalar", "num_threads": 1, "num_blocks": 8}
    config = EngineConfig(**{**values, "max_model_len": 64, **changes})
    worker = Worker(config)
    logits = last_logits(worker, config, [PROMPT]).tobytes()
    was_cached = worker._cache_writer is None
    worker.close()
    return logits, was_cached


def plain(model: Path, **changes: Any) -> bytes:
    return run(model, packed_cache=False, **changes)[0]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def the_file(folder: Path) -> Path:
    (name,) = names(folder)
    return folder / name


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
    "rows16-1": "db42c739b763e93121e30a57bfffb3f3549505129245778ad3eefa9b103b9ce4",
    "panels16x32-1": "ac4f65592e1c231242e387fbd7999e8a50d51a3953715aa19429493464ed82aa",
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


def test_a_file_with_a_right_checksum_and_another_key_is_not_used(llama: Path, folder: Path) -> None:
    run(llama)
    first = the_file(folder)
    other = write_tiny_llama(llama.parent / "other", seed=1, tokenizer=False)
    run(other)
    (second,) = names(folder) - {first.name}
    first.rename(folder / second)
    assert run(other) == (plain(other), False)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_used(mode: int, llama: Path, folder: Path) -> None:
    run(llama)
    path = the_file(folder)
    inode = path.stat().st_ino
    path.chmod(mode)
    assert not run(llama)[1]
    assert path.stat().st_ino != inode
    assert run(llama)[1]


def test_a_file_of_another_user_is_not_used(llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(llama)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert not run(llama)[1]


def test_a_link_in_the_folder_is_not_followed(llama: Path, folder: Path) -> None:
    run(llama)
    path = the_file(folder)
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")
    assert not run(llama)[1]
    assert not path.is_symlink()


def test_folder_and_file_are_their_owners_alone(llama: Path, folder: Path) -> None:
    run(llama)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert the_file(folder).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_write_keeps_nothing(
    llama: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with caplog.at_level(logging.INFO):
        run(llama)
    assert names(folder) == set()
    assert "packed weights are not kept for the next start" in caplog.text


def test_where_nothing_can_be_written_serving_goes_on(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be: even root cannot write there."""
    blocked = llama.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("FASTPAGED_CACHE", str(blocked / "cache"))
    assert run(llama) == (plain(llama), False)


def test_a_full_disk_leaves_nothing_behind(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed_cache, "_DISK_MARGIN", 1 << 60)
    with caplog.at_level(logging.INFO):
        run(llama)
    assert "on the disk" in caplog.text
    assert names(folder) == set()
    monkeypatch.undo()
    monkeypatch.setenv("FASTPAGED_CACHE", str(folder))

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_space)
    run(llama)
    assert names(folder) == set()


def test_the_limit_removes_what_was_not_used_for_longest(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [write_tiny_llama(tmp_path / f"model{i}", seed=i, tokenizer=False) for i in range(3)]
    run(models[0])
    size = the_file(folder).stat().st_size
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", repr(2.5 * size / 2**30))
    run(models[1])
    for path, age in zip(sorted(folder.iterdir()), (100, 200), strict=True):
        os.utime(path, (age, age))
    assert run(models[0])[1]  # so that the other one is older
    run(models[2])
    sources = {file.source for file in PackedCache(folder, 0).files()}
    assert sources == {str(models[0] / "model.safetensors"), str(models[2] / "model.safetensors")}
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", repr(0.5 * size / 2**30))
    assert not run(models[1])[1]
    assert len(names(folder)) == 2


@pytest.mark.parametrize("text", ["-1", "much", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(text: str, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", text)
    with pytest.raises(InvalidRequestError, match="FASTPAGED_CACHE_GIB must be a number of GiB"):
        run(llama)


def test_unfinished_files_are_removed_unless_somebody_still_writes_them(llama: Path, folder: Path) -> None:
    import fcntl

    folder.mkdir(mode=0o700)
    left, busy = folder / "left.part", folder / "busy.part"
    left.write_text("x")
    with busy.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run(llama)
        assert busy.exists()
        assert not left.exists()


def test_a_writer_that_is_interrupted_leaves_no_file(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while close() waits for it."""
    writing, interrupted = threading.Event(), threading.Event()
    write = os.pwrite

    def slow(*args: Any) -> int:
        writing.set()
        assert interrupted.wait(60)
        return write(*args)

    def interrupt(thread: threading.Thread) -> None:
        assert writing.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", slow)
    worker = Worker(EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8))
    writer = worker._cache_writer
    assert writer is not None
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            worker.close()
    interrupted.set()
    worker.close()
    assert names(folder) == set()


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


def test_an_empty_variable_keeps_nothing_and_a_relative_one_is_a_folder_here(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTPAGED_CACHE", "")
    assert PackedCache.from_environment() is None
    assert run(llama)[1]  # nothing to write
    monkeypatch.chdir(llama.parent)
    monkeypatch.setenv("FASTPAGED_CACHE", "cache")
    run(llama)
    assert len(names(folder)) == 1


@pytest.mark.parametrize(
    ("xdg", "home", "found"),
    [("/x/caches", "/h", "/x/caches/fastpaged"), ("", "/h", "/h/.cache/fastpaged"), ("x", "/h", "/h/.cache/fastpaged")],
)
def test_the_folder_is_where_users_keep_caches(
    xdg: str, home: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTPAGED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", home)
    cache = PackedCache.from_environment()
    assert cache is not None
    assert str(cache.folder) == found


def test_random_weights_for_benchmarks_are_not_kept(llama: Path, folder: Path) -> None:
    assert run(llama, load_format="dummy")[1]
    assert names(folder) == set()


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
    monkeypatch.setattr(packed_weights, "_SECONDS_BEFORE_WRITING", 3600)
    config = EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8)
    worker = Worker(config)
    last_logits(worker, config, [PROMPT])
    assert names(folder) == set()
    worker.close()
    assert len(names(folder)) == 1


KILLED = """
import os, sys
from fastpaged.config import EngineConfig
from fastpaged.worker.worker import Worker

write = os.pwrite
def killed(*args):
    write(*args)
    os._exit(9)

os.pwrite = killed
Worker(EngineConfig(model=sys.argv[1], isa="scalar", num_threads=1, num_blocks=8)).close()
"""


def test_a_process_that_dies_while_it_writes_leaves_nothing_that_a_later_one_would_use(
    llama: Path, folder: Path
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(llama)], check=False, timeout=60)
    assert done.returncode == 9
    assert the_file(folder).suffix == ".part"
    assert not run(llama)[1]
    assert the_file(folder).suffix == ".weights"
    assert run(llama) == (plain(llama), True)


def test_a_forked_child_waits_for_no_writer_and_writes_nothing(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "_SECONDS_BEFORE_WRITING", 3600)
    worker = Worker(EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8))
    child = os.fork()
    if child == 0:
        try:
            worker.close()
            os._exit(len(names(folder)))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    worker.close()
    assert len(names(folder)) == 1
