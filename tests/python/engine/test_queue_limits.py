"""How many requests may wait to be let in: who is refused, and that nothing else changes by it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import PROMPTS, Gate, answer, collect, greedy, inner, run, until
from engine.fake_clock import assert_nothing_is_held, on_fake_clock, run_to_the_end
from engine.fakes import toy_engine

from fastpaged import (
    LLM,
    AsyncLLMEngine,
    FastpagedError,
    InvalidRequestError,
    LLMEngine,
    QueueOverflowError,
    SamplingParams,
)


def waiting(engine: LLMEngine) -> tuple[int, int]:
    return engine._outputs.num_waiting, engine._outputs.num_waiting_tokens


# ---- an engine


def test_a_request_beyond_the_limit_is_refused_by_name_and_leaves_nothing_behind() -> None:
    engine = toy_engine(max_num_queued_requests=2)
    drawn = SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True)
    for name in "ab":
        engine.add_request(name, PROMPTS[0], drawn)
    with pytest.raises(QueueOverflowError, match="max_num_queued_requests = 2, and 2 requests wait") as error:
        engine.add_request("c", PROMPTS[0], drawn)
    assert isinstance(error.value, FastpagedError)
    assert not isinstance(error.value, ValueError)  # it may be right a moment later
    assert not engine.has_request("c")
    assert waiting(engine) == (2, 6)
    engine.step()
    engine.add_request("c", PROMPTS[0], drawn)  # with the seed that it would have had
    finished = run_to_the_end(engine)
    free = toy_engine()
    for name in "abc":
        free.add_request(name, PROMPTS[0], drawn)
    assert {name: out.outputs for name, out in finished.items()} == {
        name: out.outputs for name, out in run_to_the_end(free).items()
    }
    assert_nothing_is_held(engine)


def test_tokens_of_waiting_prompts_are_limited_and_an_empty_queue_takes_any() -> None:
    engine = toy_engine(max_num_queued_tokens=8, max_num_seqs=1)
    engine.add_request("long", [70] * 20, greedy(3))
    with pytest.raises(
        QueueOverflowError,
        match="max_num_queued_tokens = 8, 1 requests wait with prompts of 20 tokens, and this one needs 1",
    ):
        engine.add_request("short", [70], greedy(3))
    engine.step()
    engine.add_request("five", [71] * 5, greedy(3))
    engine.add_request("three", [71] * 3, greedy(3))
    assert engine.queue_overflow(1) is not None
    assert len(run_to_the_end(engine)) == 3
    assert_nothing_is_held(engine)


def test_who_runs_or_was_preempted_does_not_wait() -> None:
    engine = toy_engine(
        num_blocks=6, num_host_blocks=6, block_size=2, max_num_queued_requests=1, enable_prefix_caching=False
    )
    for i in range(2):
        engine.add_request(str(i), [65 + i] * 3, greedy(8))
        engine.step()
    while not engine.scheduler.stats.num_preemptions:
        engine.step()
    assert engine.scheduler.num_waiting + engine.scheduler.num_swapped > 0
    assert waiting(engine) == (0, 0)
    engine.add_request("2", [70] * 3, greedy(8))
    assert len(run_to_the_end(engine)) == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_queue_is_counted_right_whatever_happens(seed: int) -> None:
    """Against a plain list of who has never been scheduled."""
    rng = random.Random(seed)
    engine = toy_engine(
        num_blocks=12, num_host_blocks=6, block_size=2, max_num_seqs=3, max_num_batched_tokens=8,
        max_num_queued_requests=3, max_num_queued_tokens=30, preemption_mode=rng.choice(("swap", "recompute")),
        async_scheduling=bool(seed % 2),
    )  # fmt: skip
    clock = on_fake_clock(engine)
    in_line: dict[str, int] = {}
    num_refused = 0
    for i in range(150):
        if rng.random() < 0.7:
            tokens = rng.choice((1, 4, 15))
            refused = len(in_line) >= 3 or bool(in_line and sum(in_line.values()) + tokens > 30)
            assert (engine.queue_overflow(tokens) is not None) == refused
            try:
                engine.add_request(str(i), [65 + i % 30] * tokens, greedy(rng.randint(1, 6)), queue_timeout=4)
                in_line[str(i)] = tokens
            except QueueOverflowError:
                num_refused += 1
                assert refused
        if in_line and rng.random() < 0.1:
            name = rng.choice(list(in_line))
            assert engine.abort_request(name) is not None
            del in_line[name]
        clock.pass_seconds(rng.random())
        ended = {output.request_id for output in engine.step() if output.finished}
        begun = {name for name in in_line if name in ended or engine._outputs.has_begun(name)}
        for name in begun:
            del in_line[name]
        assert waiting(engine) == (len(in_line), sum(in_line.values()))
    assert num_refused > 0
    run_to_the_end(engine)
    assert_nothing_is_held(engine)


# ---- a list of prompts


def test_a_long_list_of_prompts_waits_in_its_call(tiny_llama: Path) -> None:
    """Its answers are those of an engine without limits, the drawn seeds among them."""
    prompts: list[Any] = [[10 + i] * (1 + 5 * (i % 3)) for i in range(12)]
    params = SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True)
    settings: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64, "max_num_seqs": 2}
    with LLM(str(tiny_llama), **settings) as llm:
        expected = [output.outputs for output in llm.generate(prompts, params)]
    with LLM(str(tiny_llama), max_num_queued_requests=2, max_num_queued_tokens=12, **settings) as llm:
        most = 0

        def note() -> None:
            nonlocal most
            most = max(most, waiting(llm.engine)[0])

        llm.engine.on_planned = note
        assert [output.outputs for output in llm.generate(prompts, params)] == expected
        assert 0 < most <= 2
        llm.engine.add_request("other", prompts[0], params)
        llm.engine.add_request("another", prompts[0], params)
        assert len(llm.generate(prompts[1], params)) == 1  # the queue was full of others' requests
        assert len(list(llm.stream(prompts[2], params))) == 4
        run_to_the_end(llm.engine)
        assert_nothing_is_held(llm.engine)


# ---- coroutines


def test_a_coroutine_hears_that_the_queue_is_full_and_may_ask_before() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine(max_num_seqs=1, max_num_queued_requests=1))

    gate = Gate(engine)

    async def overflow() -> None:
        gate.let(1)
        first = engine.generate(PROMPTS[0], greedy(40))
        await anext(first)
        engine.check_admission()
        second = asyncio.ensure_future(collect(engine.generate(PROMPTS[1], greedy(5))))
        await until(lambda: not engine._thread._commands.empty())
        gate.let(1)
        await until(lambda: inner(engine)._outputs.num_waiting == 1)
        with pytest.raises(QueueOverflowError, match="max_num_queued_requests = 1"):
            engine.check_admission(3)
        third = asyncio.ensure_future(collect(engine.generate(PROMPTS[2], greedy(5))))
        await until(lambda: not engine._thread._commands.empty())
        gate.let(1000)
        with pytest.raises(QueueOverflowError, match="max_num_queued_requests = 1"):
            await third
        await first.aclose()
        assert (await second)[-1].outputs[0].token_ids == answer(PROMPTS[1], 5)

    run(overflow())
    with pytest.raises(InvalidRequestError, match="num_tokens must be an integer >= 1, got 0"):
        engine.check_admission(0)
    engine.shutdown()
    with pytest.raises(FastpagedError, match="shut down"):
        engine.check_admission()
