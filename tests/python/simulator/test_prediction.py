"""What is predicted of other settings is what a real engine with them does, on the same clock."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine.fakes import toy_engine
from simulator.reruns import Asked, Decisions, decisions, random_requests, run_on_virtual_clock

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine.decisions import plan_rows
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.recorder import fields_of
from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams
from fastpaged.simulator.figures import Figures
from fastpaged.simulator.history import History, Outside, history_of
from fastpaged.simulator.prediction import Changes, predict
from fastpaged.simulator.recording import Recording, read_recording
from fastpaged.simulator.step_times import StepTimes, parts_of

SMALL: dict[str, Any] = {"num_blocks": 16, "num_host_blocks": 24, "block_size": 4, "max_num_seqs": 8}
NOISE = random.Random(3)


def noisy(plan: _core.SchedulerOutput) -> int:
    """A step's time by its work, and some more."""
    return 100_000 + 5_000 * plan.num_tokens + 20_000 * len(plan.copies) + NOISE.randrange(20_000)


def recorded(path: Path, asked: list[Asked], **settings: Any) -> tuple[Recording, History]:
    engine = toy_engine(record=str(path), **(SMALL | settings))
    run_on_virtual_clock(engine, asked, noisy)
    engine.close()
    recording = read_recording(str(path))
    history = history_of(recording)
    assert history.num_differences == 0
    return recording, history


def predicted(recording: Recording, history: History, times: StepTimes, changes: Changes) -> list[Decisions]:
    planned: list[Decisions] = []
    predict(recording.header, history, times, changes, lambda plan: planned.append(decisions(plan)))
    return planned


def assert_same(predicted: list[Decisions], real: list[Decisions]) -> None:
    for step, (expected, got) in enumerate(zip(predicted, real, strict=False)):
        assert expected == got, f"step {step}"
    assert len(predicted) == len(real)


CHANGES: list[tuple[Changes, dict[str, Any]]] = [
    (Changes(), {}),
    (Changes(blocks=12), {"num_blocks": 12}),
    (Changes(blocks=40), {"num_blocks": 40}),
    (Changes(blocks=13, preemption_mode="swap"), {"num_blocks": 13, "preemption_mode": "swap"}),
    (Changes(blocks=13, preemption_mode="recompute"), {"num_blocks": 13, "preemption_mode": "recompute"}),
    (Changes(blocks=14, host_blocks=2), {"num_blocks": 14, "num_host_blocks": 2}),
    (Changes(block_size=2), {"num_blocks": 32, "num_host_blocks": 48, "block_size": 2}),
    (Changes(policy="fcfs"), {"scheduling_policy": "fcfs"}),
]


def as_recorded(asked: list[Asked], history: History) -> list[Asked]:
    """Without the aborts that came when a request had ended: had it taken longer, no recording would know of them."""
    ids = [outside.what["id"] for outside in history.outside if outside.kind == "add"]  # in the order of asked
    aborted = {outside.what["id"] for outside in history.outside if outside.kind == "abort"}
    return [
        request if group_id in aborted else replace(request, abort_time=None)
        for group_id, request in zip(ids, asked, strict=True)
    ]


@pytest.mark.parametrize(("seed", "policy"), [(0, "fcfs"), (1, "fcfs"), (1, "priority"), (2, "priority")])
@pytest.mark.parametrize(("changes", "settings"), CHANGES)
def test_other_settings_are_predicted_step_by_step(
    tmp_path: Path, seed: int, policy: str, changes: Changes, settings: dict[str, Any]
) -> None:
    asked = random_requests(seed, 30, mean_gap=300_000, policy=policy)
    settings = {"scheduling_policy": policy, **settings}
    recording, history = recorded(tmp_path / "run", asked, scheduling_policy=policy)
    times = history.step_times()
    ratio = changes.block_ratio(recording.header)
    rerun = toy_engine(**(SMALL | settings))
    asked = as_recorded(asked, history)
    if rerun.config.scheduling_policy == "fcfs":  # which takes no priorities
        asked = [replace(request, terms=request.terms | {"priority": 0}) for request in asked]
    real = run_on_virtual_clock(
        rerun, asked, lambda plan: times.nanoseconds(parts_of(plan_rows(plan), plan.copies, ratio))
    )
    assert_same(predicted(recording, history, times, changes), real)
    if rerun.scheduler.num_blocks < 16:
        assert rerun.scheduler.stats.num_preemptions > 0


def test_a_real_model_with_half_the_pool_does_what_was_predicted(tmp_path: Path, tiny_llama: Path) -> None:
    def engine(num_blocks: int, **changes: Any) -> LLMEngine:
        config = EngineConfig(
            model=str(tiny_llama), isa="scalar", num_threads=1, block_size=4, num_blocks=num_blocks, max_num_seqs=8,
            max_model_len=64, max_num_batched_tokens=32, swap_space=24 * 4 * 256 / 2**30, **changes,
        )  # fmt: skip
        return LLMEngine(config)

    asked = random_requests(7, 16, mean_gap=200_000)
    first = engine(32, record=str(tmp_path / "run"))
    run_on_virtual_clock(first, asked, noisy)
    first.close()
    recording = read_recording(str(tmp_path / "run"))
    history = history_of(recording)
    times = history.step_times()
    second = engine(16)
    real = run_on_virtual_clock(second, asked, lambda plan: times.nanoseconds(parts_of(plan_rows(plan), plan.copies)))
    assert second.scheduler.stats.num_preemptions > 0
    second.close()
    assert_same(predicted(recording, history, times, Changes(blocks=16)), real)


def test_figures_of_one_request_by_hand(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    _, history = recorded(tmp_path / "run", [Asked([70, 80, 90], params, 5_000, None)])
    figures = history.figures
    assert (figures.num_requests, figures.num_steps, figures.num_output_tokens) == (1, 4, 4)
    assert figures.ttft[0] == pytest.approx(history.durations[0])
    assert figures.tpot[0] == pytest.approx(sum(history.durations[1:]) / 3)
    assert figures.queue_time == (0.0, 0.0, 0.0)
    assert figures.makespan == pytest.approx(sum(history.durations))
    assert figures.throughput == pytest.approx(4 / figures.makespan)
    assert figures.kv_use == pytest.approx((1 + 1 + 2 + 2) / 4 / 16)


def test_a_prediction_of_the_same_settings_takes_about_as_long_as_it_took(tmp_path: Path) -> None:
    recording, history = recorded(tmp_path / "run", random_requests(5, 30, mean_gap=300_000))
    figures: Figures = predict(recording.header, history, history.step_times(), Changes())
    assert figures.makespan == pytest.approx(history.figures.makespan, rel=0.05)
    assert figures.num_output_tokens == pytest.approx(history.figures.num_output_tokens, rel=0.05)


def test_requests_that_the_recording_does_not_see_the_end_of_go_no_further(tmp_path: Path) -> None:
    path = tmp_path / "run"
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    asked = [Asked([70 + i, 80, 90], params, 0, None) for i in range(2)]
    recorded(path, asked)
    lines = path.read_text().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if '"e":"update"' in line]
    path.write_text("".join(lines[: ends[9] + 1]))
    recording = read_recording(str(path))
    history = history_of(recording)
    assert [answers.is_cut for answers in history.answers.values()] == [True, True]
    figures = predict(recording.header, history, history.step_times(), Changes())
    assert figures.num_output_tokens == history.figures.num_output_tokens == 20


def test_settings_that_the_requests_do_not_fit_are_refused(tmp_path: Path) -> None:
    recording, history = recorded(tmp_path / "run", random_requests(5, 10, mean_gap=300_000))
    with pytest.raises(InvalidRequestError, match="cannot be run like that"):
        predict(recording.header, history, history.step_times(), Changes(blocks=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (Changes(blocks=0), "blocks must be from 1 to 4194304, got 0"),
        (Changes(host_blocks=2**31 - 1), "host_blocks must be from 0 to 4194304, got 2147483647"),
        (Changes(block_size=0), "block_size must be from 1 to 256, got 0"),
        (Changes(block_size=257), "block_size must be from 1 to 256, got 257"),
        (
            Changes(block_size=256),
            "block_size must leave at least one block of a pool of 16 blocks of 4 tokens, got 256",
        ),
    ],
)
def test_numbers_out_of_range_are_told_by_their_own_names(tmp_path: Path, changes: Changes, said: str) -> None:
    recording, history = recorded(tmp_path / "run", random_requests(5, 3, mean_gap=300_000))
    with pytest.raises(InvalidRequestError, match=f"^{said}$"):
        predict(recording.header, history, history.step_times(), changes)


@pytest.mark.parametrize(
    ("changes", "left_out"), [(Changes(block_size=8), 1), (Changes(blocks=4), 1), (Changes(block_size=2), 0)]
)
def test_a_pin_that_other_settings_cannot_have_is_left_out_and_counted(
    tmp_path: Path, changes: Changes, left_out: int
) -> None:
    engine = toy_engine(record=str(tmp_path / "run"), pinned_prefix_budget=0.5, **SMALL)
    engine.scheduler.pin(1, [70, 71, 72, 73, 74])
    engine.scheduler.pin(2, list(range(70, 70 + 20)))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.add_request("0", {"prompt_token_ids": [70, 71, 72, 73, 74, 75]}, params)
    while engine.has_unfinished_requests():
        engine.step()
    engine.scheduler.unpin(1)
    engine.close()
    recording = read_recording(str(tmp_path / "run"))
    history = history_of(recording)
    figures = predict(recording.header, history, history.step_times(), changes)
    assert figures.num_pins_left_out == left_out
    assert figures.num_output_tokens == 4


def test_what_a_block_s_copy_costs_goes_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, history = recorded(tmp_path / "run", random_requests(5, 3, mean_gap=300_000))
    costs = {"seconds_per_token": 1.0, "seconds_per_block_out": 2.0, "seconds_per_block_in": 3.0}
    header = replace(recording.header, costs=costs)
    larger = Changes(block_size=8).applied_to(header).costs
    assert larger == {"seconds_per_token": 1.0, "seconds_per_block_out": 4.0, "seconds_per_block_in": 6.0}
    told: list[dict[str, float]] = []

    class Watched(_core.Scheduler):
        def set_costs(self, costs: _core.PreemptionCosts) -> None:
            told.append(fields_of(costs))
            super().set_costs(costs)

    monkeypatch.setattr(_core, "Scheduler", Watched)
    history.outside.insert(0, Outside("costs", 0, costs, []))
    predict(header, history, history.step_times(), Changes(block_size=2))
    assert {"seconds_per_token": 1.0, "seconds_per_block_out": 1.0, "seconds_per_block_in": 1.5} in told
    assert costs not in told
