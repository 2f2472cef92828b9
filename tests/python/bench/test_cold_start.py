"""Cold starts in turn: who is first, and what is counted."""

from __future__ import annotations

import argparse
from pathlib import Path

import cold_start
import pytest


def test_each_round_begins_with_another_one_and_the_first_is_not_counted() -> None:
    order: list[str] = []

    def start(name: str) -> float:
        order.append(name)
        return float(len(order))

    seconds = cold_start.in_turn({name: lambda name=name: start(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert seconds == {"a": [6.0, 8.0, 10.0], "b": [4.0, 9.0, 11.0], "c": [5.0, 7.0, 12.0]}
    assert cold_start.median_difference(seconds["a"], seconds["b"]) == -1.0


def test_each_first_start_finds_nothing_kept_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []

    def seconds(args: argparse.Namespace, cache: str) -> float:
        assert not list(Path(cache).iterdir())
        (Path(cache) / "weights").touch()
        folders.append(Path(cache))
        return 1.0

    monkeypatch.setattr(cold_start, "fastpaged_seconds", seconds)
    for _ in range(2):
        assert cold_start.first_start_seconds(argparse.Namespace()) == 1.0
    assert not any(folder.exists() for folder in folders)
    assert len(set(folders)) == 2
