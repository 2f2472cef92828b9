"""scheduling_policy="priority": whose turn it is, and that no answer depends on it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import PROMPTS, Gate, answer, collect, greedy, run, until
from engine.fake_clock import assert_nothing_is_held, run_to_the_end
from engine.fakes import toy_engine, toy_greedy

from fastpaged import LLM, AsyncLLMEngine, InvalidRequestError, LLMEngine, RequestOutput, SamplingParams


def order_of_ends(engine: LLMEngine) -> list[str]:
    return list(run_to_the_end(engine))


def test_the_smaller_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    engine = toy_engine(max_num_seqs=1, scheduling_policy="priority")
    for i, priority in enumerate((1, 0, -3, 1, 0)):
        engine.add_request(str(i), PROMPTS[i], greedy(3), priority=priority)
    assert order_of_ends(engine) == ["2", "1", "4", "0", "3"]
    assert_nothing_is_held(engine)


def test_without_the_policy_a_priority_is_refused_and_zero_is_none() -> None:
    engine = toy_engine(max_num_seqs=1)
    engine.add_request("0", PROMPTS[0], greedy(3), priority=0)
    with pytest.raises(
        InvalidRequestError, match=r"^priority must be 0 without scheduling_policy='priority', got -1 with 'fcfs'"
    ):
        engine.add_request("1", PROMPTS[1], greedy(3), priority=-1)
    assert order_of_ends(engine) == ["0"]


@pytest.mark.parametrize("value", [1.5, "1", None, True, 2**31, -(2**31) - 1])
def test_a_priority_is_an_integer_of_32_bits(value: Any) -> None:
    engine = toy_engine(scheduling_policy="priority")
    with pytest.raises(InvalidRequestError, match=r"^priority must be an integer of 32 bits, got "):
        engine.add_request("r", PROMPTS[0], greedy(3), priority=value)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_full_batch_makes_place_for_a_better_priority_and_both_answers_are_whole(mode: str, overlaps: bool) -> None:
    engine = toy_engine(
        max_num_seqs=2, num_host_blocks=64, preemption_mode=mode, scheduling_policy="priority",
        async_scheduling=overlaps,
    )  # fmt: skip
    for i in range(2):
        engine.add_request(str(i), PROMPTS[i], greedy(20), priority=5 + i)
    for _ in range(4):
        engine.step()
    engine.add_request("urgent", PROMPTS[2], greedy(3), priority=0)
    finished = run_to_the_end(engine)
    assert list(finished) == ["urgent", "0", "1"]
    assert [finished[name].metrics.num_preemptions for name in ("urgent", "0", "1")] == [0, 0, 1]
    assert [finished[str(i)].outputs[0].token_ids for i in range(2)] == [answer(PROMPTS[i]) for i in range(2)]
    assert finished["urgent"].outputs[0].token_ids == answer(PROMPTS[2], 3)
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("seed", range(3))
def test_priorities_change_no_answer(seed: int) -> None:
    rng = random.Random(seed)
    engine = toy_engine(
        num_blocks=16, num_host_blocks=rng.choice((0, 20)), block_size=2, max_num_seqs=3, max_num_batched_tokens=8,
        preemption_mode=rng.choice(("recompute", "swap", "auto", "by_branches")), scheduling_policy="priority",
        ageing_steps=rng.choice((0, 5, 50)), resume_grace_steps=rng.choice((0, 8)), prefill_share=rng.choice((0, 2)),
        async_scheduling=bool(seed % 2),
    )  # fmt: skip
    waiting = {str(i): (PROMPTS[i % len(PROMPTS)] * rng.choice((1, 3)), rng.randint(1, 12)) for i in range(24)}
    requests = dict(waiting)
    finished: dict[str, RequestOutput] = {}
    for _ in range(2000):
        if not waiting and not engine.has_unfinished_requests():
            break
        if waiting and rng.random() < 0.4:
            name = next(iter(waiting))
            prompt, length = waiting.pop(name)
            engine.add_request(name, prompt, greedy(length), priority=rng.randint(-1, 1))
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        engine.scheduler.check_invariants()
    assert engine.scheduler.stats.num_preemptions > 0
    assert {name: output.outputs[0].token_ids for name, output in finished.items()} == {
        name: toy_greedy(prompt, length, stops=()) for name, (prompt, length) in requests.items()
    }
    assert_nothing_is_held(engine)


# ---- a list of prompts, and coroutines


def test_each_prompt_of_a_list_has_its_priority(tiny_llama: Path) -> None:
    settings: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 16, "max_num_seqs": 1}
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with LLM(str(tiny_llama), scheduling_policy="priority", **settings) as llm:
        outputs = llm.generate(["a", "b", "c"], params, priority=[2, 1, 0])
        first_tokens = [output.metrics.first_token_ts or 0.0 for output in outputs]
        assert first_tokens == sorted(first_tokens, reverse=True)
        assert len(llm.generate(["a", "b"], params, priority=3, deadline=[None, 1e9], queue_timeout=1e9)) == 2
        for name in ("priority", "deadline", "queue_timeout"):
            with pytest.raises(
                InvalidRequestError, match=rf"^{name} must be one for all prompts or one per prompt \(2\), got 1"
            ):
                llm.generate(["a", "b"], params, **{name: [1]})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]: priority must be an integer"):
            llm.generate(["a", "b"], params, priority=[1, 2**40])
        message = [{"role": "user", "content": "a"}]
        with pytest.raises(InvalidRequestError, match=r"^deadline must be None or a number of seconds > 0, got -1"):
            llm.chat(message, params, deadline=-1)  # type: ignore[arg-type]
        assert llm.chat(message, params, priority=1, deadline=1e9)[0].finished  # type: ignore[arg-type]
        assert list(llm.stream("a", params, priority=1))[-1].finished


def test_a_coroutine_s_request_has_its_priority() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine(max_num_seqs=1, scheduling_policy="priority"))

    gate = Gate(engine)

    async def preempting() -> None:
        gate.let(1)
        slow = engine.generate(PROMPTS[0], greedy(40), priority=2)
        await anext(slow)
        urgent = asyncio.ensure_future(collect(engine.generate(PROMPTS[1], greedy(3), priority=1)))
        await until(lambda: not engine._thread._commands.empty())
        gate.let(1000)
        assert (await urgent)[-1].outputs[0].token_ids == answer(PROMPTS[1], 3)
        last = [output async for output in slow][-1]
        assert last.outputs[0].token_ids == answer(PROMPTS[0], 40)
        assert last.metrics.num_preemptions == 1

    try:
        run(preempting())
    finally:
        engine.shutdown()
