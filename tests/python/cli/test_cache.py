"""`fastpaged cache` over a folder of packed weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastpaged.cli.main import main
from fastpaged.weights import packed_file

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
    assert lines[0].endswith(str(tiny_llama / "model.safetensors"))
    assert lines[1] == f"{folder}: 1 of 0.00 GiB, of 20.00 GiB allowed"


def test_an_engine_may_be_told_to_keep_nothing(tiny_llama: Path, folder: Path) -> None:
    assert main(["generate", "--model", str(tiny_llama), "--no-packed-cache", *QUICK]) == 0
    assert not folder.exists()


def test_clear_removes_what_is_kept_and_nothing_else(
    tiny_llama: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(tiny_llama), *QUICK]) == 0
    (folder / "broken.weights").write_bytes(b"x")
    (folder / "notes.txt").write_text("mine")
    header = b"{}"
    (folder / "odd.weights").write_bytes(packed_file._start(header, 58) + header)
    assert shown(capsys).count("  ?\n") == 2
    assert shown(capsys, "--clear") == f"{folder}: 0.00 GiB removed\n"
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert shown(capsys).startswith(f"{folder}: 0 of 0.00 GiB")


def test_where_nothing_is_kept_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTPAGED_CACHE", "")
    assert "packed weights are not kept" in shown(capsys)
    assert "packed weights are not kept" in shown(capsys, "--clear")
