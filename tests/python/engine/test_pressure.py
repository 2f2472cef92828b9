"""What preemptions cost: measured, told to the scheduler, shown; and that no answer depends on it."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine.async_tools import PROMPTS, answer, greedy
from engine.fake_clock import SECOND, assert_nothing_is_held, on_fake_clock, run_to_the_end
from engine.fakes import toy_engine

from fastpaged import RequestOutput
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.preemption_costs import CostMeter, PreemptionCosts

SWAP_IS_CHEAP = PreemptionCosts(1.0, 1e-9, 1e-9)
SWAP_IS_DEAR = PreemptionCosts(1e-9, 1.0, 1.0)


def meter(first: tuple[float, float] = (0.0, 0.0)) -> tuple[CostMeter, list[PreemptionCosts]]:
    told: list[PreemptionCosts] = []
    return CostMeter(first, told.append), told


def plan_with(*copies: tuple[str, int]) -> Any:
    return SimpleNamespace(copies=[(kind, 0, 0, count) for kind, count in copies])


# ---- measuring


def test_a_token_costs_what_steps_with_prompts_take_more_than_those_without() -> None:
    made, _ = meter()
    for _ in range(200):
        made.note_step(10, 10, 5_000_000 + 10 * 20_000)  # 5 ms for the weights, 20 us a token
        made.note_step(410, 10, 5_000_000 + 410 * 20_000)
    assert made.costs.seconds_per_token == pytest.approx(20e-6)


def test_without_a_step_to_compare_all_of_it_is_the_tokens() -> None:
    made, _ = meter()
    assert made.costs == PreemptionCosts()
    made.note_step(100, 1, 50_000_000)
    assert made.costs.seconds_per_token == pytest.approx(0.5e-3)
    made.note_step(90, 90, 45_000_000)  # hardly smaller: nothing can be told by it
    assert made.costs.seconds_per_token == pytest.approx(0.5e-3)
    made.note_step(1, 1, 90_000_000)  # slower than the prompts: neither
    assert made.costs.seconds_per_token == pytest.approx(0.5e-3)


def test_what_is_measured_later_counts_more() -> None:
    made, _ = meter()
    for cost in (10_000, 30_000):
        for _ in range(500):
            made.note_step(1000, 1, 1000 * cost)
    assert made.costs.seconds_per_token == pytest.approx(30e-6, rel=0.01)


def test_a_clock_that_stands_still_measures_nothing() -> None:
    made, told = meter((2e-6, 3e-6))
    made.note_step(100, 1, 0)
    made.note_copies(plan_with(("swap_out", 3)), 0)
    assert made.costs == PreemptionCosts(0.0, 2e-6, 3e-6)
    assert told == []


def test_blocks_cost_what_their_copies_take_each_way() -> None:
    made, _ = meter()
    for _ in range(300):
        made.note_copies(plan_with(("swap_out", 10)), 700_000)
        made.note_copies(plan_with(("swap_in", 4)), 120_000)
    assert made.costs.seconds_per_block_out == pytest.approx(70e-6)
    assert made.costs.seconds_per_block_in == pytest.approx(30e-6)
    made.note_copies(plan_with(("copy_on_write", 5)), 10**9)  # moves nothing between the tiers
    assert made.costs.seconds_per_block_out == pytest.approx(70e-6)


def test_copies_of_both_ways_in_one_plan_share_its_time_as_they_would_alone() -> None:
    made, _ = meter((80e-6, 40e-6))
    for _ in range(500):
        made.note_copies(plan_with(("swap_out", 10), ("swap_in", 10), ("swap_out", 10)), 4_000_000)
    assert made.costs.seconds_per_block_out == pytest.approx(160e-6, rel=0.02)
    assert made.costs.seconds_per_block_in == pytest.approx(80e-6, rel=0.02)


def test_the_scheduler_hears_of_costs_that_have_changed_by_a_tenth() -> None:
    made, told = meter((10e-6, 10e-6))
    made.note_step(100, 1, 1_000_000)
    assert told == [PreemptionCosts(10e-6, 10e-6, 10e-6)]
    made.note_step(100, 1, 1_050_000)
    assert len(told) == 1
    made.note_step(100, 1, 3_000_000)
    assert len(told) == 2
    made.fix(SWAP_IS_DEAR)
    assert (told[2], made.costs) == (SWAP_IS_DEAR, SWAP_IS_DEAR)
    made.note_step(100, 1, 10**9)
    assert made.costs == SWAP_IS_DEAR
    assert len(told) == 3
    made.fix(None)
    assert made.costs.seconds_per_token > 1e-6


def seconds_per_token_of(engine: LLMEngine, step_time: int, away: int) -> float:
    """Of prompts of 16 tokens, all steps taking as long, the caller being away as long between two of them."""
    clock = on_fake_clock(engine)
    worker: Any = engine.worker

    def compute() -> None:
        clock.now += step_time

    worker.before_step = compute
    for i in range(12):
        engine.add_request(str(i), [20 + i] * 16, greedy(1))
    while engine.has_unfinished_requests():
        engine.step()
        clock.now += away
    return engine.preemption_costs.seconds_per_token


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_what_the_caller_does_between_steps_costs_no_token(async_scheduling: bool) -> None:
    found = [
        seconds_per_token_of(
            toy_engine(max_num_batched_tokens=16, enable_prefix_caching=False, async_scheduling=async_scheduling),
            step_time=SECOND // 100,
            away=away,
        )
        for away in (0, SECOND // 10_000, 5 * SECOND)
    ]
    assert found == pytest.approx([0.01 / 16] * 3, rel=0.02)


def test_copies_are_no_part_of_what_a_token_costs() -> None:
    engine = toy_engine(preemption_mode="auto", num_host_blocks=8)
    clock = on_fake_clock(engine)
    plan = plan_with(("swap_out", 4))
    plan.preempted, plan.num_tokens, plan.num_samples = [], 16, 1
    engine.preemptions.note_plan(plan, lambda _: None)
    clock.now += SECOND
    engine.preemptions.note_step(plan, copying_time=3 * SECOND // 4)
    costs = engine.preemption_costs
    assert costs.seconds_per_token == pytest.approx(0.25 / 16)
    assert costs.seconds_per_block_out == pytest.approx(0.75 / 4)


def test_costs_are_written_for_people() -> None:
    assert str(PreemptionCosts(0.9e-3, 70e-6, 1.25)) == "recomputing 1 token 900 us, a block out 70 us, in 1.25 s"


def test_copies_are_measured_at_the_start_in_the_memory_they_are_for(tiny_llama: Path) -> None:
    engine = pressed(tiny_llama, "auto")
    costs = engine.preemption_costs
    assert costs.seconds_per_token == 0.0  # nothing was computed yet
    assert 0 < costs.seconds_per_block_out < 1
    assert 0 < costs.seconds_per_block_in < 1
    engine.add_request("r", [10] * 5, greedy(3))
    run_to_the_end(engine)
    assert 0 < engine.preemption_costs.seconds_per_token < 1
    engine.close()
    for mode, space in (("auto", 0.0), ("swap", 0.001)):  # there is no choice to make
        engine = pressed(tiny_llama, mode, swap_space=space)
        assert engine.preemption_costs.seconds_per_block_out == 0.0
        engine.close()


# ---- what follows from it


def pressed(model: Path, mode: str, **changes: Any) -> LLMEngine:
    """A pool that holds any of the requests below, and hardly two."""
    settings: dict[str, Any] = {
        "model": str(model), "isa": "scalar", "num_threads": 1, "block_size": 2, "num_blocks": 12, "swap_space": 0.0001,
        "max_num_batched_tokens": 6, "preemption_mode": mode,
    }  # fmt: skip
    return LLMEngine(EngineConfig(**(settings | changes)))


def answers_under(engine: LLMEngine) -> dict[str, Any]:
    for i in range(6):
        engine.add_request(str(i), [10 + i] * 5, greedy(12))
    finished = run_to_the_end(engine)
    assert_nothing_is_held(engine)
    return finished


def test_what_costs_decide_changes_no_answer(tiny_llama: Path) -> None:
    free = pressed(tiny_llama, "auto", num_blocks=200)
    expected = {name: output.outputs for name, output in answers_under(free).items()}
    assert free.preemptions.totals.num_preemptions == 0
    free.close()
    for costs in (SWAP_IS_CHEAP, SWAP_IS_DEAR, None):
        for grace in (0, 8):
            engine = pressed(tiny_llama, "auto", resume_grace_steps=grace)
            engine.preemptions.fix_costs(costs)
            assert {name: output.outputs for name, output in answers_under(engine).items()} == expected
            totals = engine.preemptions.totals
            assert totals.num_preemptions > 0
            if costs is SWAP_IS_CHEAP:
                assert totals.num_bytes_swapped_out > 0
                assert totals.num_tokens_recomputed == 0
            elif costs is SWAP_IS_DEAR:
                assert (totals.num_bytes_swapped_out, totals.num_bytes_swapped_in) == (0, 0)
                assert totals.num_tokens_recomputed > 0
            engine.close()


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_bills_of_requests_add_up_to_the_total(tiny_llama: Path, mode: str) -> None:
    engine = pressed(tiny_llama, mode, enable_prefix_caching=False)
    metrics = [output.metrics for output in answers_under(engine).values()]
    totals, counted = engine.preemptions.totals, engine.worker.kv_memory.num_bytes_copied
    assert sum(own.num_preemptions for own in metrics) == totals.num_preemptions > 0
    assert sum(own.num_tokens_recomputed for own in metrics) == totals.num_tokens_recomputed
    num_bytes = totals.num_bytes_swapped_out + totals.num_bytes_swapped_in
    assert sum(own.num_bytes_swapped for own in metrics) == num_bytes
    assert (totals.num_bytes_swapped_out, totals.num_bytes_swapped_in) == (counted["swap_out"], counted["swap_in"])
    assert (num_bytes > 0, totals.num_tokens_recomputed > 0) == (mode == "swap", mode == "recompute")
    assert metrics[0].num_tokens_recomputed == metrics[0].num_bytes_swapped == 0  # the oldest never went
    engine.close()


# ---- the log


def test_preemptions_are_logged_a_line_a_second_at_most_and_costs_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = toy_engine(num_blocks=12, num_host_blocks=12, block_size=2, preemption_mode="swap", resume_grace_steps=0)
    clock = on_fake_clock(engine)
    engine.preemptions.fix_costs(PreemptionCosts(1e-3, 2e-6, 3e-6))
    for i in range(6):
        engine.add_request(str(i), PROMPTS[i], greedy(20))
    with caplog.at_level(logging.INFO, "fastpaged.engine.preemption_log"):
        finished: dict[str, RequestOutput] = {}
        while engine.has_unfinished_requests():
            clock.now += SECOND // 4
            finished |= {output.request_id: output for output in engine.step() if output.finished}
    lines = [record.getMessage() for record in caplog.records]
    assert 1 < len(lines) < engine.preemptions.totals.num_preemptions
    assert lines[0].startswith("KV blocks ran out: preempted '")
    assert "(swapped, " in lines[0]
    assert "; so far 2 preemptions, 0 tokens recomputed, 0.0 MB swapped" in lines[0]
    costs = "; costs: recomputing 1 token 1 ms, a block out 2 us, in 3 us"
    assert [costs in line for line in lines] == [True] + [False] * (len(lines) - 1)
    assert any(" more; so far " in line for line in lines)  # what was not said in time
    assert [finished[str(i)].outputs[0].token_ids for i in range(6)] == [answer(PROMPTS[i]) for i in range(6)]


def test_who_is_not_pressed_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = toy_engine()
    engine.add_request("r", PROMPTS[0], greedy(20))
    with caplog.at_level(logging.DEBUG, "fastpaged.engine.preemption_log"):
        run_to_the_end(engine)
    assert caplog.records == []
