"""A long prompt shares its steps: by the tokens of each plan, never by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from engine.async_tools import PROMPTS, answer, greedy
from engine.fake_clock import assert_nothing_is_held, run_to_the_end
from engine.fakes import toy_engine, toy_greedy

from fastpaged.engine.llm_engine import LLMEngine


def noted_plans(engine: LLMEngine) -> list[Counter[int]]:
    """Tokens by group id of each plan from now on."""
    plans: list[Counter[int]] = []
    run = engine._executor.run

    def noted_run(plan: object) -> object:
        plans.append(Counter())
        for group_id, _, num_tokens in plan.scheduled:  # type: ignore[attr-defined]
            plans[-1][group_id] += num_tokens
        return run(plan)  # type: ignore[arg-type]

    engine._executor.run = noted_run  # type: ignore[method-assign,assignment]
    return plans


def engine_with(share: int, long_prompt: int, **changes: int) -> LLMEngine:
    settings = {"num_blocks": 400, "max_model_len": 1600, "max_num_batched_tokens": 64} | changes
    return toy_engine(prefill_share=share, enable_prefix_caching=False, **settings)  # type: ignore[arg-type]


def test_beside_decoding_requests_a_long_prompt_goes_on_by_its_share_a_step() -> None:
    engine = engine_with(8, 400)
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], greedy(30))
    engine.step()
    plans = noted_plans(engine)
    engine.add_request("long", [70] * 400, greedy(2))
    for _ in range(20):
        engine.step()
    assert all(plan[group_id] == 1 for plan in plans for group_id in range(3))
    assert all(0 < plan[3] <= 8 for plan in plans)
    finished = run_to_the_end(engine)
    assert [finished[str(i)].outputs[0].token_ids for i in range(3)] == [answer(PROMPTS[i], 30) for i in range(3)]
    assert finished["long"].outputs[0].token_ids == toy_greedy([70] * 400, 2, stops=())
    assert_nothing_is_held(engine)


def test_a_prompt_alone_has_the_whole_budget() -> None:
    engine = engine_with(8, 400)
    plans = noted_plans(engine)
    engine.add_request("long", [70] * 400, greedy(2))
    run_to_the_end(engine)
    assert [plan[0] for plan in plans] == [64] * 6 + [16, 1]


def first_token_step(engine: LLMEngine, name: str) -> int:
    for step in range(1, 1000):
        if any(output.request_id == name for output in engine.step()):
            return step
    raise AssertionError("no token")


@pytest.mark.parametrize("others", [0, 3])
def test_the_first_token_of_a_short_prompt_does_not_wait_for_a_long_one(others: int) -> None:
    """However long that is."""
    steps = []
    for length in (200, 400, 800, 1500):
        engine = engine_with(16, length)
        for i in range(others):
            engine.add_request(str(i), PROMPTS[i], greedy(60))
        engine.add_request("long", [70] * length, greedy(2))
        engine.step()
        engine.add_request("short", PROMPTS[5], greedy(2))
        steps.append(first_token_step(engine, "short"))
        assert not any(output.request_id == "long" for output in engine.step())
    assert len(set(steps)) == 1
    assert steps[0] <= 2


def test_without_a_share_the_long_prompt_takes_what_there_is() -> None:
    engine = engine_with(0, 400)
    engine.add_request("decodes", PROMPTS[0], greedy(30))
    engine.step()
    plans = noted_plans(engine)
    engine.add_request("long", [70] * 400, greedy(2))
    engine.step()
    assert dict(plans[0]) == {0: 1, 1: 63}


@pytest.mark.parametrize("share", [1, 5, 64, 10_000])
def test_a_share_changes_no_answer(share: int) -> None:
    make: Callable[[int], LLMEngine] = lambda share: engine_with(share, 300, max_num_seqs=4)  # noqa: E731
    answers = []
    for own in (0, share):
        engine = make(own)
        for i in range(6):
            engine.add_request(str(i), PROMPTS[i] * (1, 30, 4)[i % 3], greedy(10))
        answers.append({name: output.outputs for name, output in run_to_the_end(engine).items()})
        assert_nothing_is_held(engine)
    assert answers[0] == answers[1]
