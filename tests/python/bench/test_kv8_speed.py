"""What the bench of 8-bit KV compares."""

from __future__ import annotations

import argparse
from pathlib import Path

import kv8_speed
import pytest


def test_each_cell_is_of_both_dtypes_in_turn_and_pools_hold_the_same_tokens(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTPAGED_ISA", "scalar")
    args = argparse.Namespace(
        model=str(tiny_llama), threads=1, sequences=[1, 2], contexts=[70], rounds=3, seconds=0.0
    )  # fmt: skip
    rows = kv8_speed.compared(args, "int8")
    assert [(row["dtype"], row["sequences"], row["context"]) for row in rows] == [("int8", 1, 70), ("int8", 2, 70)]
    for row in rows:
        for name in ("cpu_ms", "step_ms", "attention_ms"):
            assert row[name] > 0.0
            assert row[f"{name}_ratio"] == row[name] / row[f"bfloat16_{name}"]
    assert "0.625 of bfloat16's" in capsys.readouterr().out  # heads of 16: 20 bytes of 32
