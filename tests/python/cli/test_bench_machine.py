"""`fastpaged bench machine`: which rates it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastpaged import _core
from fastpaged.cli import bench_machine, machine_limits
from fastpaged.cli.bench_machine import thread_counts
from fastpaged.cli.main import main
from fastpaged.worker import free_memory


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are nobody's business here."""
    monkeypatch.setattr(machine_limits, "_SAMPLE_SECONDS", 0.0)
    sustained = machine_limits.sustained_rate
    monkeypatch.setattr(
        machine_limits, "sustained_rate", lambda measure, percentile=50: sustained(measure, percentile, 1)
    )


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])],
)
def test_threads_are_doubled_up_to_the_most(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_every_rate_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "machine.json"
    assert main(["bench", "machine", "--threads", "2", "--bytes", str(1 << 20), "--json", str(out)]) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert (figures["num_threads"], figures["bytes"]) == (2, 1 << 20)
    assert all(rate["rate"] > 0 for rate in figures["rates"])
    reads = [(r["from"], r["threads"]) for r in figures["rates"] if r["what"] == "read"]
    assert reads == [(place, n) for place in ("memory", "shared cache", "own cache") for n in (1, 2)]
    products = {(r["isa"], r["dtype"]) for r in figures["rates"] if r["what"] == "multiply"}
    measured = set(_core.supported_isas()) - {"amx_emulated"}
    assert {isa for isa, _ in products} == measured
    assert products >= {(isa, "bfloat16") for isa in measured & {"amx", "avx512"}}
    printed = capsys.readouterr().out
    for words in (
        "Reading 1 MiB that stay in the shared cache (L3: ",
        "Multiplying float32 on scalar, in registers",
        "  2 threads",
        "GFLOP/s",
    ):
        assert words in printed


def test_memory_is_read_as_much_as_a_model_has_weights(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    assert main(["bench", "machine", "--threads", "1", "--model", str(tiny_llama), "--json", str(out)]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["bytes"] == 1 << 20  # and no less than that


def test_a_model_larger_than_half_of_the_free_memory_is_read_in_part(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_machine, "bytes_of_model", lambda name: 1 << 50)
    monkeypatch.setattr(free_memory, "free_memory_bytes", lambda: 6 << 20)
    out = tmp_path / "machine.json"
    assert main(["bench", "machine", "--threads", "1", "--model", str(tiny_llama), "--json", str(out)]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["bytes"] == 3 << 20


def test_what_no_cache_holds_is_called_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_limits, "shared_cache_bytes", lambda: 1 << 18)
    for num_bytes, words in ((1 << 20, "Reading 1 MiB of memory\n"), (2 << 20, "Reading 2 MiB of memory\n")):
        assert main(["bench", "machine", "--threads", "1", "--bytes", str(num_bytes)]) == 0
        assert words in capsys.readouterr().out
    monkeypatch.setattr(machine_limits, "shared_cache_bytes", lambda: (1 << 18) + 1)
    assert main(["bench", "machine", "--threads", "1", "--bytes", str(1 << 20)]) == 0
    assert "Reading 1 MiB of memory" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threads", "0"], "--threads must lie in [1, 1024], got 0"),
        (["--bytes", "5"], "--bytes must lie in"),
        (["--bytes", str(1 << 60)], "the free memory, got 1152921504606846976"),
        (["--model", "no/such/folder/model"], "model"),
        (["--json", "no/such/folder/out.json"], "--json"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "machine", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
