"""`fastpaged cache` over a folder of packed weights."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastpaged import _core
from fastpaged.cli import engine_options, generate
from fastpaged.cli.main import main
from fastpaged.weights import cache_writer, packed_file

QUICK = ["--prompt", "a", "--isa", "scalar", "--num-threads", "1", "--num-blocks", "32", "--max-tokens", "2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FASTPAGED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["cache", *options]) == 0
    return capsys.readouterr().out


def test_a_first_answer_leaves_packed_weights_and_a_second_one_is_the_same(
    tiny_llama: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for _ in range(2):
        assert main(["generate", "--model", str(tiny_llama), "--temperature", "0", *QUICK]) == 0
        answers.append(capsys.readouterr().out)
        assert len(list(folder.iterdir())) == 1
    assert answers[0] == answers[1]
    lines = shown(capsys).splitlines()
    assert len(lines) == 2
    packing = f"bfloat16, {_core.CpuDevice('scalar', 1).weight_layout}, {_core.__version__}"
    assert lines[0].endswith(f"  {packing}  {tiny_llama / 'model.safetensors'}")
    assert lines[1] == f"{folder}: 1 of 0.00 GiB, of 20.00 GiB allowed"


def test_an_engine_may_be_told_to_keep_nothing(tiny_llama: Path, folder: Path) -> None:
    assert main(["generate", "--model", str(tiny_llama), "--no-packed-cache", *QUICK]) == 0
    assert not folder.exists()


def test_clear_removes_what_is_kept_and_nothing_else(
    tiny_llama: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(tiny_llama), *QUICK]) == 0
    (kept,) = folder.iterdir()
    name = "-".join(["0123456789abcdef"] * 3)
    header = b"{}"
    (folder / f"{name}.weights").write_bytes(packed_file._start(header, 58) + header)
    (folder / f"{name[:-1]}0.weights").write_bytes(kept.read_bytes()[:-1])
    (folder / f"{name}.part").write_text("x")
    mine = {"notes.txt", "yolov3.weights", "movie.mkv.part"}
    for other in mine:
        (folder / other).write_text("mine")
    lines = shown(capsys).splitlines()
    assert sum(line.endswith("  ?, ?, ?  ?") for line in lines) == 2
    assert sum(line.endswith(f"  unfinished, of a process that ended: {name}.part") for line in lines) == 1
    assert lines[-1].startswith(f"{folder}: 4 of 0.00 GiB")
    assert shown(capsys, "--clear") == f"{folder}: 0.00 GiB removed\n"
    assert {path.name for path in folder.iterdir()} == mine
    assert shown(capsys).startswith(f"{folder}: 0 of 0.00 GiB")


class SlowDisk:
    """It is reached, and writes when it is told to."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.goes = threading.Event()

    def write(self, *args: Any) -> int:
        self.is_reached.set()
        assert self.goes.wait(60)
        return WRITE(*args)


WRITE = os.pwritev


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(os, "pwritev", disk.write)
    return disk


class Screen(io.StringIO):
    """A terminal or not; what is said of the waiting calls `then`."""

    def __init__(self, is_terminal: bool, then: Callable[[], object]) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self._then = then

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if TOLD in text:
            self._then()
        return super().write(text)


class Text(io.StringIO):
    """As stdout, which can be told what to do with odd characters."""

    def reconfigure(self, **_: object) -> None:
        """Takes them all."""


TOLD = "fastpaged: keeping packed weights for the next start; Ctrl-C skips that"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_waits_for_the_writing_is_told_so_with_the_answer_there(
    is_terminal: bool, tiny_llama: Path, folder: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    stdout = Text()

    def note() -> None:
        printed.append(stdout.getvalue())
        slow_disk.goes.set()

    screen = Screen(is_terminal, note)
    monkeypatch.setattr(engine_options, "_SECONDS_IN_SILENCE", 0.01)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert main(["generate", "--model", str(tiny_llama), "--json", *QUICK]) == 0
    assert screen.getvalue().count(TOLD) == 1
    assert json.loads(printed[0])["outputs"]
    assert [path.suffix for path in folder.iterdir()] == [".weights"]


def test_a_short_wait_is_silent_where_no_terminal_is(
    tiny_llama: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_options, "_SECONDS_IN_SILENCE", 3600)
    assert main(["generate", "--model", str(tiny_llama), *QUICK]) == 0
    assert "packed weights" not in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1


def test_ctrl_c_skips_the_writing_and_the_command_is_done(
    tiny_llama: Path, folder: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_writer, "_SECONDS_TO_STOP", 0.01)  # of a disk that hangs

    def interrupt() -> None:
        assert slow_disk.is_reached.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    screen = Screen(True, interrupt)
    monkeypatch.setattr(sys, "stderr", screen)
    try:
        assert main(["generate", "--model", str(tiny_llama), *QUICK]) == 0
        assert list(folder.iterdir()) == []
    finally:
        slow_disk.goes.set()


def test_ctrl_c_in_an_answer_waits_for_no_writing(
    tiny_llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_writer, "_SECONDS_BEFORE_WRITING", 3600)
    monkeypatch.setattr(generate, "_answer", interrupted)
    assert main(["generate", "--model", str(tiny_llama), *QUICK]) == 130
    assert not folder.exists()


def test_where_nothing_is_kept_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTPAGED_CACHE", "")
    assert "packed weights are not kept" in shown(capsys)
    assert "packed weights are not kept" in shown(capsys, "--clear")
