"""`fastpaged bench` on the tiny model: what is printed, what is written, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastpaged import LLM, _core
from fastpaged.cli import machine_limits
from fastpaged.cli.main import main
from fastpaged.cli.workload import WorkloadRequest
from fastpaged.cli.workload_run import replay
from fastpaged.engine.step_profile import StepProfile

WORKLOAD = [{"prompt": [5, 6, 7], "out": 4}, {"prompt": [9], "out": 2}]
SMALL = ["--isa", "scalar", "--num-threads", "1", "--num-blocks", "32"]


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(WORKLOAD), encoding="utf-8")
    return path


def bench(kind: str, model: Path, workload: Path, *options: str) -> int:
    return main(["bench", kind, "--model", str(model), "--workload", str(workload), *SMALL, *options])


def test_throughput_writes_the_fields_that_people_know_and_its_own(
    tiny_llama: Path, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert bench("throughput", tiny_llama, workload, "--json", str(out), "--repeat", "3") == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert (figures["num_requests"], figures["total_num_tokens"], figures["failed"]) == (2, 10, 0)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (4, 6)
    assert figures["requests_per_second"] == pytest.approx(2 / figures["elapsed_time"])
    assert figures["tokens_per_second"] == pytest.approx(10 / figures["elapsed_time"])
    assert sorted(figures["elapsed_times"])[1] == figures["elapsed_time"]
    assert figures["model_id"] == str(tiny_llama)
    assert figures["scheduler"]["num_steps"] == 4
    assert figures["kv_cache"]["num_blocks"] == 32
    assert {"mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"} <= figures.keys()
    assert "profile" not in figures
    printed = capsys.readouterr().out
    for words in ("Output token throughput (tok/s):", "Mean TTFT (ms):", "KV blocks in use, peak:", "of 32"):
        assert words in printed


def test_latency_gives_every_run_and_percentiles(
    tiny_llama: Path, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert bench("latency", tiny_llama, workload, "--json", str(out), "--num-iters", "5") == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert len(figures["latencies"]) == 5
    assert figures["avg_latency"] == pytest.approx(sum(figures["latencies"]) / 5)
    assert set(figures["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert figures["percentiles"]["50"] == pytest.approx(sorted(figures["latencies"])[2])
    assert figures["total_output_tokens"] == 6
    assert figures["scheduler"]["num_steps"] == 4
    assert "P99 latency (s):" in capsys.readouterr().out


def test_what_was_found_in_the_prefix_cache_is_reported(
    tiny_llama: Path, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = [5 + i for i in range(32)]
    workload.write_text(json.dumps([{"prompt": [*shared, 70 + i], "out": 2} for i in range(2)]), encoding="utf-8")
    out = tmp_path / "out.json"
    for options, cache, printed in (
        ([], {"enabled": True, "num_cached_tokens": 32, "hit_rate": 32 / 66}, "32 (48.5 %)"),
        (
            ["--no-enable-prefix-caching"],
            {"enabled": False, "num_cached_tokens": 0, "hit_rate": 0.0},
            "none (it is off)",
        ),
    ):
        assert bench("throughput", tiny_llama, workload, "--repeat", "2", "--json", str(out), *options) == 0
        assert json.loads(out.read_text(encoding="utf-8"))["prefix_cache"] == cache
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Prompt tokens found")]
        assert line.endswith(printed)


def test_answers_cut_short_are_no_success(
    tiny_llama: Path, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload.write_text(json.dumps([{"prompt": [5, 6, 7], "out": 300}]), encoding="utf-8")
    out = tmp_path / "out.json"
    assert bench("throughput", tiny_llama, workload, "--num-blocks", "4", "--json", str(out)) == 1
    assert json.loads(out.read_text(encoding="utf-8"))["cut_short"] == 1
    assert "1 answers are too short, for the KV pool was full" in capsys.readouterr().err


def test_the_profile_accounts_for_every_step_and_op(
    tiny_llama: Path, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert bench("throughput", tiny_llama, workload, "--json", str(out), "--profile") == 0
    profile: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["profile"]
    assert profile["num_steps"] == 4
    assert sum(profile["phases"].values()) == pytest.approx(profile["total_seconds"], rel=1e-6)
    assert min(profile["phases"].values()) >= 0
    # Two layers: qkv, o, gate_up and down in each, and the head.
    assert profile["ops"]["linear"]["calls"] == 4 * (2 * 4 + 1)
    assert profile["ops"]["paged_attention"]["calls"] == 4 * 2
    assert sum(op["seconds"] for op in profile["ops"].values()) <= profile["phases"]["forward"]
    printed = capsys.readouterr().out
    assert "paged_attention" in printed
    assert "% of what this machine allows" in printed


def test_the_profile_says_what_the_machine_allows(
    tiny_llama: Path, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = _core.MachineLimits(
        memory_rate=1e9, cache_rate=1e9, shared_cache_rate=1e9, cache_bytes=1 << 20, flop_rate=1e30
    )
    monkeypatch.setattr(machine_limits, "limits_of_engine", lambda engine, bar: limits)
    out = tmp_path / "out.json"
    assert bench("throughput", tiny_llama, workload, "--json", str(out), "--profile", "--repeat", "2") == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    profile = figures["profile"]
    assert profile["machine"] == machine_limits.limits_as_dict(limits)
    # Two runs of 4 steps, in which 3 + 1, 2, 1 and 1 tokens are computed; each step reads all the weights of the two
    # layers and the head once, and of a tied or untied embedding the tokens' rows.
    linear = profile["ops"]["linear"]
    config = json.loads((tiny_llama / "config.json").read_text(encoding="utf-8"))
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    num_weights = 2 * (hidden * (hidden + 2 * 32) + hidden * hidden + 3 * hidden * inner) + hidden * vocab
    assert linear["weight_bytes"] == 2 * 4 * num_weights * 2
    assert profile["ops"]["embedding"]["weight_bytes"] == 2 * 8 * hidden * 2
    moved = sum(op["weight_bytes"] + op["kv_bytes"] for op in profile["ops"].values())
    assert figures["limit_time"] == pytest.approx(moved / 1e9 / 2)
    assert figures["share_of_limit"] == pytest.approx(2 * figures["limit_time"] / sum(figures["elapsed_times"]))
    assert 0 < linear["limit_seconds"] == pytest.approx(linear["weight_bytes"] / 1e9)


def test_a_profile_is_held_against_a_file_of_rates(tiny_llama: Path, workload: Path, tmp_path: Path) -> None:
    places = ("memory", "shared cache", "own cache")
    rows: list[dict[str, Any]] = [{"what": "read", "from": place, "threads": 1, "rate": 1e9} for place in places]
    rows.append({"what": "multiply", "from": "own cache", "isa": "x", "dtype": "bfloat16", "threads": 1, "rate": 1e30})
    machine, out = tmp_path / "machine.json", tmp_path / "out.json"
    machine.write_text(json.dumps({"rates": rows}), encoding="utf-8")
    options = ["--num-threads", "1", "--machine", str(machine), "--json", str(out)]
    assert bench("throughput", tiny_llama, workload, "--profile", *options) == 0
    profile = json.loads(out.read_text(encoding="utf-8"))["profile"]
    assert (profile["machine"]["memory_rate"], profile["machine"]["flop_rate"], profile["warnings"]) == (1e9, 1e30, [])
    moved = sum(op["weight_bytes"] + op["kv_bytes"] for op in profile["ops"].values())
    assert profile["limit_seconds"] == pytest.approx(moved / 1e9)
    assert bench("throughput", tiny_llama, workload, *options) == 2  # no profile to hold against it


def test_a_bench_keeps_no_packed_weights(
    tiny_llama: Path, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTPAGED_CACHE", str(tmp_path / "kept"))
    assert bench("throughput", tiny_llama, workload) == 0
    assert not (tmp_path / "kept").exists()
    with LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=32):
        pass
    assert list((tmp_path / "kept").iterdir())  # as an engine does


def test_a_profiled_engine_gives_the_answers_of_another(tiny_llama: Path) -> None:
    settings: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 32}
    with LLM(str(tiny_llama), **settings) as llm:
        plain = llm.generate(["The cat", "x"])
    with LLM(str(tiny_llama), **settings) as llm:
        profile = StepProfile()
        profile.attach(llm.engine)
        assert [o.outputs for o in llm.generate(["The cat", "x"])] == [o.outputs for o in plain]
        replay(llm.engine, [WorkloadRequest([5], 3)])
        assert profile.num_steps >= 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--repeat", "0"], "--repeat must be at least 1"),
        (["--json", "no/such/folder/out.json"], "--json"),
        (["--json", "/"], "--json"),
        (["--max-model-len", "4"], "request 0: This model's maximum context length"),
        (["--block-size", "1000"], "block_size"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    tiny_llama: Path, workload: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    workload.write_text(json.dumps([{"prompt": [5, 6, 7, 8, 9], "out": 4}]), encoding="utf-8")
    assert bench("throughput", tiny_llama, workload, *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
