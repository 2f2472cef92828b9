"""The folder of packed weights: who may write there, how much, and what is left of processes that died."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama
from weights.packed_runs import names, plain, run, the_file

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.weights import cache_writer, packed_cache
from fastpaged.weights.cache_folder import UnfinishedFile
from fastpaged.weights.packed_cache import PackedCache
from fastpaged.worker.worker import Worker

NAME = "-".join(["0123456789abcdef"] * 3)  # as our files have


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights are kept."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FASTPAGED_CACHE", str(folder))
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", tokenizer=False)


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


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_nothing_is_read_from_a_folder_that_others_may_write(
    mode: int, llama: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(llama)
    folder.chmod(mode)
    with caplog.at_level(logging.INFO):
        assert not run(llama)[1]
    assert "are not used, and made anew: " in caplog.text
    assert "may be written by others than user" in caplog.text
    folder.chmod(0o700)
    assert run(llama)[1]


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

    monkeypatch.setattr(os, "pwritev", no_space)
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


def test_to_list_the_files_does_not_count_as_use(llama: Path, folder: Path) -> None:
    run(llama)
    path = the_file(folder)
    others = [folder / f"{NAME[:-1]}{digit}.weights" for digit in "ab"]
    for other in others:
        other.write_bytes(path.read_bytes())
    paths = [others[1], path, others[0]]
    for age, used in enumerate(paths):
        os.utime(used, (100 + age, 100 + age))
    for _ in range(3):
        found = PackedCache(folder, 0).files()
        assert [(file.path, file.last_used) for file in found] == list(zip(paths, (100, 101, 102), strict=True))
    assert run(llama)[1]
    assert [file.path for file in PackedCache(folder, 0).files()] == [others[1], others[0], path]


def test_files_of_others_in_the_folder_are_neither_counted_nor_removed(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    mine = {"yolov3.weights", "movie.mkv.part", f"{NAME}.weights", f"{NAME}x.weights", f"x{NAME}.part", f"{NAME}.PART"}
    for name in mine:
        (folder / name).write_bytes(b"0" * 100_000)
    (folder / f"{NAME[:-1]}a.weights").mkdir()
    (folder / f"{NAME[:-1]}b.part").mkdir()
    os.mkfifo(folder / f"{NAME[:-1]}c.weights")
    (folder / f"{NAME[:-1]}d.weights").symlink_to(folder / "yolov3.weights")
    before = names(folder)
    run(llama)
    (ours,) = names(folder) - before
    size = (folder / ours).stat().st_size
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", repr(1.5 * size / 2**30))
    (llama / "model.safetensors").touch()
    assert not run(llama)[1]
    cache = PackedCache(folder, 0)
    (file,) = cache.files()
    assert file.path.name != ours
    assert cache.unfinished() == []
    assert names(folder) == before | {file.path.name}
    assert cache.clear() == size
    assert names(folder) == before


def test_a_file_of_another_version_goes_when_this_one_writes_and_one_of_another_dtype_stays(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_core, "__version__", "0.0.0.older")
        run(llama)
        old = the_file(folder)
    run(llama, dtype="float32")
    new, *others = PackedCache(folder, 0).files()
    assert not old.exists()
    assert others == []
    assert (new.dtype, new.layout, new.version) == ("float32", "rows16-1", _core.__version__)
    run(llama, dtype="bfloat16")
    assert {file.dtype for file in PackedCache(folder, 0).files()} == {"bfloat16", "float32"}


def test_a_disk_that_is_too_small_removes_no_other_files(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [write_tiny_llama(tmp_path / f"model{i}", seed=i, tokenizer=False) for i in range(2)]
    run(models[0])
    path = the_file(folder)
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", repr(1.5 * path.stat().st_size / 2**30))
    with monkeypatch.context() as patch:
        patch.setattr(packed_cache, "_DISK_MARGIN", 1 << 60)
        run(models[1])
    assert the_file(folder) == path
    run(models[1])
    assert the_file(folder) != path


@pytest.mark.parametrize("text", ["-1", "much", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(text: str, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", text)
    with pytest.raises(InvalidRequestError, match="FASTPAGED_CACHE_GIB must be a number of GiB"):
        run(llama)


def test_unfinished_files_are_removed_at_a_start_unless_somebody_still_writes_them(llama: Path, folder: Path) -> None:
    run(llama)
    whole = the_file(folder)
    left, busy = folder / f"{NAME[:-1]}a.part", folder / f"{NAME[:-1]}b.part"
    left.write_text("x")
    with busy.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache = PackedCache(folder, 0)
        assert cache.unfinished() == [UnfinishedFile(left, 1, False), UnfinishedFile(busy, 0, True)]
        assert run(llama)[1]  # it reads, and writes nothing
        assert names(folder) == {whole.name, busy.name}
        cache.clear()
        assert names(folder) == {busy.name}


def test_what_another_process_is_writing_is_left_to_it(
    llama: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(llama)
    path = the_file(folder)
    path.rename(path.with_suffix(".part"))
    with path.with_suffix(".part").open("r+b") as file, caplog.at_level(logging.INFO):
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run(llama) == (plain(llama), False)
        assert "another process is writing them" in caplog.text
        assert names(folder) == {path.with_suffix(".part").name}
        path.with_suffix(".part").rename(path)
    assert run(llama)[1]


def test_what_another_process_has_written_meanwhile_is_not_written_again(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_writer, "_SECONDS_BEFORE_WRITING", 3600)
    config = EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8)
    first, second = Worker(config), Worker(config)
    assert first.is_keeping_weights and second.is_keeping_weights
    first.close()
    inode = the_file(folder).stat().st_ino
    second.close()
    assert the_file(folder).stat().st_ino == inode


def test_what_others_are_writing_counts_in_the_limit(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(llama)
    size = the_file(folder).stat().st_size
    PackedCache(folder, 0).clear()
    busy = folder / f"{NAME}.part"
    with busy.open("wb") as file, caplog.at_level(logging.INFO):
        fcntl.flock(file, fcntl.LOCK_EX)
        os.truncate(busy, size)
        monkeypatch.setenv("FASTPAGED_CACHE_GIB", repr(1.9 * size / 2**30))
        run(llama)
        assert names(folder) == {busy.name}
        assert f"{size} bytes, with {size} that are being written, are more than" in caplog.text
        monkeypatch.setenv("FASTPAGED_CACHE_GIB", repr(2.1 * size / 2**30))
        run(llama)
        assert len(names(folder)) == 2


def test_the_room_on_the_disk_is_taken_before_anything_is_written(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(llama)
    size = the_file(folder).stat().st_size
    PackedCache(folder, 0).clear()
    sizes: list[int] = []
    write = os.pwritev

    def noted(descriptor: int, *args: Any) -> int:
        sizes.append(os.fstat(descriptor).st_blocks * 512)
        return write(descriptor, *args)

    monkeypatch.setattr(os, "pwritev", noted)
    run(llama)
    assert sizes[0] >= size
    PackedCache(folder, 0).clear()

    def not_there(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no such operation")

    monkeypatch.setattr(os, "posix_fallocate", not_there)
    run(llama)
    assert the_file(folder).stat().st_size == size


def test_a_tilde_is_the_home_folder_and_a_bad_limit_of_no_cache_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FASTPAGED_CACHE", "~/packed")
    cache = PackedCache.from_environment()
    assert cache is not None
    assert cache.folder == tmp_path / "packed"
    monkeypatch.setenv("FASTPAGED_CACHE", "")
    monkeypatch.setenv("FASTPAGED_CACHE_GIB", "much")
    assert PackedCache.from_environment() is None


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
