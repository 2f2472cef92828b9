"""Elsewhere: requests wait without a limit, and are computed when nobody wants them any more."""

from __future__ import annotations

from typing import Any

import pytest
from engine.async_tools import PROMPTS, answer, greedy
from engine.fake_clock import assert_nothing_is_held, finished_by, on_fake_clock, run_to_the_end
from engine.fakes import toy_engine

from fastpaged import QueueOverflowError
from fastpaged.engine.llm_engine import LLMEngine


def computed_groups(engine: LLMEngine) -> set[int]:
    """Group ids that any plan from now on has a token of."""
    groups: set[int] = set()
    run = engine._executor.run

    def noted_run(plan: Any) -> Any:
        groups.update(group_id for group_id, _, _ in plan.scheduled)
        return run(plan)

    engine._executor.run = noted_run  # type: ignore[method-assign]
    return groups


@pytest.mark.parametrize("how", ["queue_timeout", "deadline"])
def test_behaviour_14_who_waited_too_long_ends_in_the_step_of_that_tick_and_never_runs(how: str) -> None:
    engine = toy_engine(max_num_seqs=1)
    clock = on_fake_clock(engine)
    computed = computed_groups(engine)
    engine.add_request("runs", PROMPTS[0], greedy(30))
    times: dict[str, float] = {how: 2.0}
    for i in range(1, 5):
        engine.add_request(str(i), PROMPTS[i], greedy(30), **times)  # type: ignore[arg-type]
    for _ in range(5):
        assert finished_by(engine.step()) == {}
    clock.now += 2 * 10**9 - 1
    assert finished_by(engine.step()) == {}
    clock.now += 1
    assert finished_by(engine.step()) == {str(i): ("abort", how) for i in range(1, 5)}
    assert run_to_the_end(engine)["runs"].outputs[0].token_ids == answer(PROMPTS[0], 30)
    assert computed == {0}
    assert_nothing_is_held(engine)


def test_behaviour_14_a_time_that_is_up_before_the_first_step_is_up() -> None:
    engine = toy_engine()
    clock = on_fake_clock(engine)
    computed = computed_groups(engine)
    engine.add_request("late", PROMPTS[0], greedy(5), deadline=0.5)
    clock.pass_seconds(0.5)
    assert finished_by(engine.step()) == {"late": ("abort", "deadline")}
    assert computed == set()
    assert_nothing_is_held(engine)


def test_behaviour_14_a_full_queue_says_so_at_once_with_an_error_that_may_be_tried_again() -> None:
    engine = toy_engine(max_num_seqs=1, max_num_queued_requests=2, queue_timeout=1.0)
    clock = on_fake_clock(engine)
    engine.add_request("runs", PROMPTS[0], greedy(30))
    engine.step()
    for i in range(2):
        engine.add_request(str(i), PROMPTS[1], greedy(3))
    for _ in range(3):  # however often
        with pytest.raises(QueueOverflowError, match="max_num_queued_requests = 2"):
            engine.add_request("more", PROMPTS[2], greedy(3))
    clock.pass_seconds(1)
    assert finished_by(engine.step()) == {str(i): ("abort", "queue_timeout") for i in range(2)}
    engine.add_request("more", PROMPTS[2], greedy(3), queue_timeout=100)
    assert run_to_the_end(engine)["more"].outputs[0].token_ids == answer(PROMPTS[2], 3)
    assert_nothing_is_held(engine)
