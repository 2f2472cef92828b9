"""Elsewhere: an urgent request waits behind a full batch of idle ones, and one of low priority for ever. Here a
strictly better priority takes a place in the batch, and who has waited long enough goes first: within a bound."""

from __future__ import annotations

from typing import Any

import pytest
from engine.async_tools import PROMPTS, answer, greedy
from engine.fake_clock import assert_nothing_is_held, run_to_the_end
from engine.fakes import toy_engine

from fastpaged.engine.llm_engine import LLMEngine

LOW, HIGH = 10, 0


def engine_of(ageing_steps: int, **changes: Any) -> LLMEngine:
    settings: dict[str, Any] = {"max_num_seqs": 2, "num_host_blocks": 64, "preemption_mode": "swap"}
    return toy_engine(scheduling_policy="priority", ageing_steps=ageing_steps, **(settings | changes))


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("full", ["batch", "pool", "budget"])
def test_behaviour_12_a_better_priority_begins_in_the_next_step_however_full_the_engine_is(
    full: str, mode: str
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "batch": {"max_num_seqs": 2},
        "pool": {"max_num_seqs": 4, "num_blocks": 8, "block_size": 2, "watermark": 0.0},
        "budget": {"max_num_seqs": 4, "max_num_batched_tokens": 4},
    }
    engine = engine_of(0, preemption_mode=mode, enable_prefix_caching=False, **settings[full])
    for i in range(2):
        engine.add_request(f"low {i}", PROMPTS[i], greedy(10), priority=LOW + i)
    for _ in range(5):
        engine.step()
    engine.add_request("high", PROMPTS[2], greedy(2), priority=HIGH)
    outputs = engine.step()
    assert engine._outputs.has_begun("high")
    if full == "budget":  # which has 2 tokens left of 4 for its prompt of 3
        outputs = engine.step()
    assert "high" in {output.request_id for output in outputs}
    finished = run_to_the_end(engine)
    assert finished["high"].metrics.num_preemptions == 0
    assert [finished[f"low {i}"].outputs[0].token_ids for i in range(2)] == [answer(PROMPTS[i], 10) for i in range(2)]
    assert_nothing_is_held(engine)


def test_behaviour_12_equals_take_nothing_from_each_other() -> None:
    engine = engine_of(0)
    for i in range(2):
        engine.add_request(str(i), PROMPTS[i], greedy(10), priority=LOW)
    engine.step()
    engine.add_request("late", PROMPTS[2], greedy(2), priority=LOW)
    assert list(run_to_the_end(engine))[-1] == "late"
    assert engine.scheduler.stats.num_preemptions == 0


def steps_to_the_end_of_low(ageing_steps: int, max_steps: int) -> int:
    """Under a stream of better requests that would fill the batch for ever, two of them at each step."""
    engine = engine_of(ageing_steps)
    engine.add_request("low", PROMPTS[0], greedy(6), priority=LOW)
    for step in range(max_steps):
        for i in range(2):
            engine.add_request(f"{step}.{i}", PROMPTS[1 + i], greedy(3), priority=HIGH)
        for output in engine.step():
            if output.request_id == "low" and output.finished:
                assert output.outputs[0].token_ids == answer(PROMPTS[0], 6)
                return step
        engine.scheduler.check_invariants()
    return max_steps


@pytest.mark.parametrize("ageing_steps", [1, 5, 20, 60])
def test_behaviour_12_whoever_waits_goes_first_within_a_bound(ageing_steps: int) -> None:
    """It ages in so many steps, then waits for no more than those that have aged before it: here nobody."""
    longest_answer = 6
    assert steps_to_the_end_of_low(ageing_steps, 200) <= ageing_steps + 2 * longest_answer


def test_behaviour_12_without_ageing_it_would_starve() -> None:
    """So that the test above is known to ask for something."""
    assert steps_to_the_end_of_low(0, 200) == 200


def test_behaviour_12_an_aged_request_is_not_preempted_for_a_priority() -> None:
    engine = engine_of(3, max_num_seqs=1)
    engine.add_request("first", PROMPTS[1], greedy(8), priority=HIGH)
    engine.add_request("low", PROMPTS[0], greedy(8), priority=LOW)
    for _ in range(9):
        engine.step()
    engine.add_request("high", PROMPTS[2], greedy(2), priority=HIGH)
    finished = run_to_the_end(engine)
    assert list(finished) == ["low", "high"]
    assert finished["low"].metrics.num_preemptions == 0
