"""`fastpaged bench kernels` on the tiny model: which steps it runs, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastpaged import LLM, _core
from fastpaged.cli import machine_limits
from fastpaged.cli.kernel_steps import KernelSteps
from fastpaged.cli.kernel_table import ABOVE_LIMIT, is_marked, kernel_table
from fastpaged.cli.main import main
from fastpaged.cli.step_kind import StepKind
from fastpaged.cli.step_sizes import StepSizes

LIMITS = _core.MachineLimits(
    memory_rate=1e9, cache_rate=4e9, shared_cache_rate=2e9, cache_bytes=1 << 20, flop_rate=1e10
)


@pytest.fixture
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this machine had been measured."""
    monkeypatch.setattr(machine_limits, "limits_of_engine", lambda engine, bar: LIMITS)


@pytest.mark.usefixtures("known_limits")
def test_the_table_has_a_column_for_each_kind_of_step(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernels.json"
    options = ["--batch", "1,3", "--context", "20", "--prefill", "30", "--steps", "2", "--threads", "2"]
    command = ["bench", "kernels", "--model", str(tiny_llama), "--isa", "scalar", *options, "--json", str(out)]
    assert main(command) == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert (figures["isa"], figures["num_threads"], figures["context"]) == ("scalar", 2, 20)
    assert list(figures["steps"]) == ["batch 1", "batch 3", "prefill 30"]
    for name, rows in (("batch 1", 1), ("batch 3", 3), ("prefill 30", 30)):
        step = figures["steps"][name]
        gate_up = step["ops"]["linear 64x344"]  # of two layers; an activation and a product with its gate behind it
        memory, flops = 64 * 344 * 2, rows * (2 * 64 * 344 + 172 * (2 + 1))
        assert (gate_up["calls"], gate_up["memory_bytes"], gate_up["flops"]) == (2, 2 * memory, 2 * flops)
        assert gate_up["limit_seconds"] == pytest.approx(2 * LIMITS.seconds(memory_bytes=memory, flops=flops))
        assert step["num_steps"] == 2
        assert 0 < step["limit_seconds"] == pytest.approx(sum(op["limit_seconds"] or 0 for op in step["ops"].values()))
    printed = capsys.readouterr().out
    for words in ("batch 1", "prefill 30", "linear 64x344", "paged_attention", "sampling", "planning", "memory, GB/s"):
        assert words in printed


def tokens_of(step: dict[str, Any]) -> int:
    """By the bytes that the embedding writes: float32, 64 of them a token."""
    written: int = step["ops"]["embedding"]["activation_bytes"]
    return written // (64 * 4)


@pytest.mark.parametrize("context", [1, 70, 300])  # prompts that are read in one step, and in several
def test_steps_are_what_they_are_said_to_be(tiny_llama: Path, context: int) -> None:
    sizes = StepSizes((4, 9), context=context, prefill=33, num_steps=3)
    with LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=sizes.num_blocks(16)) as llm:
        steps = KernelSteps(llm.engine, sizes)
        for batch in sizes.batches:
            step = steps.decode(batch).held_against(LIMITS)
            assert tokens_of(step) == batch
            # 2 layers, K and V of 2 heads of 16 in bfloat16: what a step reads of each token in the cache
            kv_bytes = step["ops"]["paged_attention"]["memory_bytes"] / (2 * 2 * 2 * 16 * 2)
            assert batch * sizes.context < kv_bytes <= batch * sizes.num_tokens
        assert tokens_of(steps.prefill(33).held_against(LIMITS)) == 33
        assert np.all(llm.engine.worker.kv_memory.array != 0), "memory that nobody wrote is one page of zeros"
        assert llm.generate(["x"])[0].outputs[0].token_ids  # the engine is as good as before


def test_times_are_medians_over_the_steps_and_limits_those_of_each_call() -> None:
    kind = StepKind(
        totals=[4.0, 2.0, 3.0],
        times={"linear 2x3": [1.0, 9.0, 2.0], "planning": [0.1, 0.1, 0.1]},
        costs={"linear 2x3": (2, int(4e9), 0, 0)},
    )
    figures = kind.held_against(LIMITS)
    assert figures["seconds"] == 3.0
    assert figures["ops"]["linear 2x3"]["seconds"] == 2.0
    assert figures["ops"]["linear 2x3"]["limit_seconds"] == pytest.approx(4.0)
    assert figures["ops"]["linear 2x3"]["share_of_step"] == pytest.approx(2 / 3)
    assert figures["ops"]["planning"]["limit_seconds"] is None


def test_slow_ops_that_matter_are_marked() -> None:
    def op(share: float, limit: float | None) -> dict[str, Any]:
        return {"share_of_step": share, "seconds": 1.0, "limit_seconds": limit}

    assert is_marked(op(0.06, 0.59))
    assert not is_marked(op(0.05, 0.1))
    assert not is_marked(op(0.5, 0.6))
    assert not is_marked(op(0.5, None))
    step = {
        "seconds": 1.0,
        "limit_seconds": 0.5,
        "ops": {"add": op(0.5, 0.25), "linear 2x3": op(0.4, 0.9)},
        "limits": machine_limits.limits_as_dict(LIMITS),
    }
    figures = {
        "model_id": "m", "isa": "i", "dtype": "d", "kv_cache_dtype": "d", "num_threads": 1, "context": 1,
        "steps": {"batch 1": step},
    }  # fmt: skip
    lines = kernel_table({**figures, "warnings": []}).splitlines()
    assert [line.split()[0] for line in lines if "! 25 %" in line] == ["add"]
    assert any(line.split() == ["linear", "2x3", "90", "%", "40.0", "%"] for line in lines)
    assert any(line.split() == ["step", "50", "%", "1000.00", "ms"] for line in lines)
    assert ABOVE_LIMIT not in lines


def test_what_is_above_its_limit_is_shown_as_it_is_and_marked() -> None:
    add = {"share_of_step": 0.5, "seconds": 1.0, "limit_seconds": 1.2}
    limits = machine_limits.limits_as_dict(LIMITS)
    step = {"seconds": 2.0, "limit_seconds": 1.2, "ops": {"add": add}, "limits": limits}
    figures = {
        "model_id": "m", "isa": "i", "dtype": "d", "kv_cache_dtype": "d", "num_threads": 1, "context": 1,
        "steps": {"batch 1": step},
    }  # fmt: skip
    lines = kernel_table({**figures, "warnings": ["a warning"]}).splitlines()
    assert any(line.split() == ["add", "?", "120", "%", "50.0", "%"] for line in lines)
    assert lines[-2:] == [ABOVE_LIMIT, "a warning"]


def test_a_machine_that_changes_between_the_steps_is_a_warning(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = iter([1e9, 1e9, 2e9])

    def limits(engine: object, bar: object) -> _core.MachineLimits:
        return _core.MachineLimits(
            memory_rate=next(rates), cache_rate=4e9, shared_cache_rate=2e9, cache_bytes=1 << 20, flop_rate=1e10
        )

    monkeypatch.setattr(machine_limits, "limits_of_engine", limits)
    options = ["--batch", "1", "--context", "20", "--prefill", "30", "--steps", "1", "--threads", "1"]
    assert main(["bench", "kernels", "--model", str(tiny_llama), "--isa", "scalar", *options]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "not quiet" in line]
    assert warnings == ["prefill 30: this machine was not quiet: memory 1.0 GB/s before, 2.0 after"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "1,x"], "--batch must be numbers"),
        (["--batch", "0"], "--batch must be numbers"),
        (["--context", "0"], "--context must lie in"),
        (["--steps", "0"], "--steps must lie in"),
        (["--context", "5000"], "max_model_len"),
        (["--num-blocks", "3"], "num_blocks must be at least"),
        (["--max-num-seqs", "2"], "max_num_seqs must be at least 64"),
        (["--max-num-batched-tokens", "64"], "max_num_batched_tokens must be at least 2048"),
        (["--json", "no/such/folder/out.json"], "--json"),
        (["--batch", "1,1000000"], "--batch 1,1000000, --context 64 and --prefill 64 must be steps that"),
        (["--threads", "2", "--num-threads", "1"], "--threads and --num-threads are the same: give one, got 2 and 1"),
    ],
)
def test_steps_that_cannot_be_are_one_line(
    tiny_llama: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "kernels", "--model", str(tiny_llama), "--isa", "scalar", "--context", "64", "--prefill", "64"]
    assert main([*command, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line for line in captured.err.splitlines() if words in line]
