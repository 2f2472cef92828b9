"""Elsewhere: one long prompt, and everybody's tokens come forty times slower. Here it shares its steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.async_tools import PROMPTS, answer, greedy
from engine.fake_clock import assert_nothing_is_held, run_to_the_end
from engine.fakes import toy_engine, toy_greedy

from fastpaged.engine.llm_engine import LLMEngine

BUDGET = 2048  # the engine's own default, and so is the share
SHARE = 512
LONG = 100_000


def engine_with_room() -> LLMEngine:
    return toy_engine(
        block_size=16, num_blocks=8000, max_model_len=120_000, max_num_batched_tokens=BUDGET, max_num_seqs=64,
        enable_prefix_caching=False,
    )  # fmt: skip


def noted_plans(engine: LLMEngine) -> list[Counter[int]]:
    """Tokens by group id of each plan."""
    plans: list[Counter[int]] = []
    run = engine._executor.run

    def noted_run(plan: Any) -> Any:
        plans.append(Counter())
        for group_id, _, num_tokens in plan.scheduled:
            plans[-1][group_id] += num_tokens
        return run(plan)

    engine._executor.run = noted_run  # type: ignore[method-assign]
    return plans


def test_behaviour_13_decoding_goes_on_each_step_beside_a_bounded_share_of_the_long_prompt() -> None:
    engine = engine_with_room()
    for i in range(4):
        engine.add_request(str(i), PROMPTS[i], greedy(60))
    engine.step()
    plans = noted_plans(engine)
    engine.add_request("long", [70] * LONG, greedy(2))
    given: Counter[str] = Counter()
    for _ in range(50):
        given.update(output.request_id for output in engine.step())
    assert given == {str(i): 50 for i in range(4)}  # a token each step, the long one none yet
    assert all(sum(plan.values()) <= SHARE + 4 for plan in plans)
    assert all(plan[4] > 0 for plan in plans)  # which goes on all the same
    finished = run_to_the_end(engine)
    assert [finished[str(i)].outputs[0].token_ids for i in range(4)] == [answer(PROMPTS[i], 60) for i in range(4)]
    assert finished["long"].outputs[0].token_ids == toy_greedy([70] * LONG, 2, stops=())
    assert_nothing_is_held(engine)


def steps_to_the_first_token(long: int, num_decoding: int) -> int:
    engine = engine_with_room()
    for i in range(num_decoding):
        engine.add_request(str(i), PROMPTS[i], greedy(60))
    if long:
        engine.add_request("long", [70] * long, greedy(2))
    engine.step()
    engine.add_request("short", PROMPTS[5] * 50, greedy(2))
    for step in range(1, 200):
        if "short" in {output.request_id for output in engine.step()}:
            return step
    raise AssertionError("no token")


def test_behaviour_13_a_short_prompt_s_first_token_comes_as_soon_as_without_the_long_one() -> None:
    for num_decoding in (0, 4):
        without = steps_to_the_first_token(0, num_decoding)
        assert [steps_to_the_first_token(long, num_decoding) for long in (10_000, 40_000, LONG)] == [without] * 3


def steps_beside(long: list[int], prompt: int) -> int:
    """To the first token of a prompt that comes when long ones and three that decode run."""
    engine = engine_with_room()
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], greedy(100))
    engine.step()
    for i, length in enumerate(long):
        engine.add_request(f"long {i}", [70 + i] * length, greedy(2))
    for _ in long:
        engine.step()
    engine.add_request("asked", [60] * prompt, greedy(2))
    for step in range(1, 100):
        if "asked" in {output.request_id for output in engine.step()}:
            return step
    raise AssertionError("no token")


def test_behaviour_13_nor_does_a_prompt_above_the_share_wait_for_the_whole_of_a_long_one() -> None:
    assert [steps_beside([long], 600) for long in (1_000, 4_000, 10_000, LONG)] == [2] * 4
    for prompt in (SHARE + 1, 1_000, 3_000):
        for num_long in (1, 3):
            steps = steps_beside([10_000] * num_long, prompt)
            assert steps <= -(-(prompt - SHARE) * (num_long + 1) // SHARE) + 1
            assert steps_beside([30_000] * num_long, prompt) == steps


def test_behaviour_13_nobody_else_there_the_long_prompt_has_whole_steps() -> None:
    engine = engine_with_room()
    plans = noted_plans(engine)
    engine.add_request("long", [70] * LONG, greedy(1))
    run_to_the_end(engine)
    assert [plan[0] for plan in plans] == [BUDGET] * (LONG // BUDGET) + [LONG % BUDGET]
