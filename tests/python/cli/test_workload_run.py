"""Replaying workloads: what is counted, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.fakes import toy_engine

from fastpaged.cli.bench import percentile
from fastpaged.cli.kernel_table import ABOVE_LIMIT
from fastpaged.cli.profile_table import profile_table
from fastpaged.cli.workload import WorkloadRequest, read_workload
from fastpaged.cli.workload_run import replay
from fastpaged.errors import InvalidRequestError


def written(folder: Path, value: object) -> Path:
    path = folder / "workload.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_workload_is_read_as_it_stands(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": [1, 2, 3], "out": 4}, {"prompt": [5], "out": 1}])
    assert read_workload(path) == [WorkloadRequest([1, 2, 3], 4), WorkloadRequest([5], 1)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "non-empty list"),
        ({"prompt": [1], "out": 1}, "non-empty list"),
        ([{"prompt": [1]}], "request 0"),
        ([{"prompt": [1], "out": 1}, {"prompt": [], "out": 1}], "request 1: prompt"),
        ([{"prompt": "text", "out": 1}], "request 0: prompt"),
        ([{"prompt": [True], "out": 1}], "request 0: prompt"),
        ([{"prompt": [1], "out": 0}], "request 0: out"),
        ([{"prompt": [1], "out": 1.5}], "request 0: out"),
        ([{"prompt": [1], "out": 1, "more": 2}], "request 0"),
    ],
)
def test_a_workload_that_is_none_is_refused_where_it_is_wrong(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_workload(written(tmp_path, value))


@pytest.mark.parametrize("text", ["", "[", "\x00", "[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "workload.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="JSON"):
        read_workload(path)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_workload(tmp_path / "none.json")


def test_a_replay_counts_what_was_done() -> None:
    engine = toy_engine(num_blocks=64, block_size=4)
    workload = [WorkloadRequest([65, 70], 5), WorkloadRequest([66, 70, 71], 9), WorkloadRequest([67], 1)]
    seen: list[tuple[int, int]] = []
    run = replay(engine, workload, lambda done, total: seen.append((done, total)))
    assert (run.num_input_tokens, run.num_output_tokens, run.num_failed) == (6, 15, 0)
    assert (len(run.ttfts), len(run.tpots)) == (3, 2)
    assert run.num_steps == 9  # all prompts in the first, a token of each in each
    assert run.max_num_running == 3
    assert run.mean_num_running == pytest.approx((5 + 9 + 1) / 9)
    # Blocks of 4 tokens: a request holds those of all but its last token. By step: 1 + 1 + 1, 1 + 1, 1 + 2, ...
    first, second = [-(-length // 4) for length in (2, 3, 4, 5, 6)], [-(-length // 4) for length in range(3, 12)]
    assert run.max_blocks_in_use == max(3, *(a + b for a, b in zip(first, second, strict=False)))
    assert run.mean_blocks_in_use == pytest.approx((sum(first) + sum(second) + 1) / 9)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert run.scheduler["num_preemptions"] == 0
    again = replay(engine, workload)
    assert again.num_steps == 9
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks


def test_preemptions_are_those_of_the_run_alone() -> None:
    engine = toy_engine(num_blocks=4, block_size=4)
    workload = [WorkloadRequest([65 + i, 70, 71], 8) for i in range(4)]
    first, second = replay(engine, workload), replay(engine, workload)
    assert first.scheduler["num_preemptions"] > 0
    assert first.scheduler == second.scheduler
    assert first.max_blocks_in_use <= 4


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (WorkloadRequest([65] * 20, 2), "request 1: This model's maximum context length"),
        (
            WorkloadRequest([65] * 10, 7),
            "request 1: prompt and out must be at most 16 tokens, max_model_len",
        ),
        (WorkloadRequest([999], 2), r"request 1: prompt\[0\] must be a token id"),
        (WorkloadRequest([65], 10**10), "request 1: max_tokens"),
    ],
)
def test_a_request_that_does_not_fit_is_named_and_leaves_nothing_behind(
    request_: WorkloadRequest, message: str
) -> None:
    engine = toy_engine(max_model_len=16)
    with pytest.raises(InvalidRequestError, match=message):
        replay(engine, [WorkloadRequest([65], 2), request_])
    assert not engine.has_unfinished_requests()


def test_a_replay_that_is_interrupted_leaves_no_clerk_behind() -> None:
    engine = toy_engine()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(engine, [WorkloadRequest([65], 1), WorkloadRequest([66], 9)], interrupt)
    assert engine.on_planned is None


def test_blocks_of_requests_that_end_in_their_first_step_are_seen() -> None:
    run = replay(
        toy_engine(num_blocks=64, block_size=4), [WorkloadRequest([65 + i, 66, 67, 68, 69], 1) for i in range(8)]
    )
    assert (run.num_steps, run.max_num_running, run.max_blocks_in_use) == (1, 8, 16)


def test_no_run_is_served_by_an_earlier_one_and_what_requests_share_is_counted() -> None:
    engine = toy_engine(num_blocks=64, block_size=4)
    shared = [65, 70, 66, 71, 67, 72, 68, 73]
    workload = [WorkloadRequest([*shared, 74 + i, 80], 3) for i in range(4)]
    runs = [replay(engine, workload) for _ in range(3)]
    assert [run.scheduler["num_prefix_tokens_found"] for run in runs] == [3 * 8] * 3
    assert [run.scheduler["num_prefix_tokens_looked_up"] for run in runs] == [4 * 10] * 3


def test_answers_that_the_pool_cuts_short_are_counted() -> None:
    engine = toy_engine(num_blocks=3, block_size=4)
    run = replay(engine, [WorkloadRequest([65, 70], 30), WorkloadRequest([66, 70], 3)])
    assert (run.num_cut, run.num_failed) == (1, 0)
    assert run.num_output_tokens < 33


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_are_those_of_numpy(count: int) -> None:
    values = list(np.random.default_rng(count).standard_normal(count))
    for percent in (0, 10, 50, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_the_profile_table_holds_every_op_against_its_limit() -> None:
    profile: dict[str, Any] = {
        "num_steps": 4,
        "total_seconds": 2.0,
        "phases": {"schedule": 0.0, "forward": 1.5, "other": 0.5},
        "ops": {
            "add": {"calls": 1, "seconds": 0.1, "limit_seconds": 0.0},
            "linear": {"calls": 8, "seconds": 1.0, "limit_seconds": 0.75},
        },
        "machine": {"memory_rate": 3e10, "cache_rate": 1e11, "shared_cache_rate": 5e10, "flop_rate": 4e11},
    }
    lines = profile_table(profile).splitlines()
    names = ["4", "limits:", "ms", "schedule", "forward", "linear", "add", "other", "total"]
    assert [line.split()[0] for line in lines] == names
    assert "30.0 GB/s from memory, 100 and 50 GB/s from caches, 400 GFLOP/s" in lines[1]
    assert lines[4].split()[1:8] == ["375.000", "75.0", "%", "187.500", "50", "%", "187.500"]
    assert lines[5].split()[1:8] == ["250.000", "50.0", "%", "187.500", "75", "%", "62.500"]
    assert lines[6].split()[1:5] == ["25.000", "5.0", "%", "25.000"]  # no limit: all of it is lost
    assert lines[8].split()[1:8] == ["500.000", "100.0", "%", "187.500", "38", "%", "312.500"]
    assert lines[5].endswith(" " + "#" * 15)
    profile["ops"]["linear"]["limit_seconds"] = 1.25
    profile["warnings"] = ["a warning"]
    lines = profile_table(profile).splitlines()
    assert lines[5].split()[4:8] == ["312.500", "125", "?", "-62.500"]
    assert lines[-2:] == [ABOVE_LIMIT, "a warning"]
