"""Pins and the prefix cache through AsyncLLMEngine: beside other requests, and gone with whoever wanted them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from engine.async_tools import Gate, collect, inner, run, until, worker_of
from engine.fakes import POISON, toy_engine
from engine.test_prefix_cache import BLOCK, GREEDY, clean

from fastpaged import AsyncLLMEngine, EngineClosedError, EngineDeadError, InvalidRequestError, StepFailedError

ONCE = dataclasses.replace(GREEDY, max_tokens=1)


@pytest.fixture
def engine() -> Iterator[AsyncLLMEngine]:
    made = AsyncLLMEngine.with_engine(toy_engine(block_size=BLOCK, num_blocks=16, pinned_prefix_budget=0.5))
    yield made
    made.shutdown()


async def num_cached(engine: AsyncLLMEngine, prompt: list[int]) -> int:
    return (await collect(engine.generate(prompt, ONCE)))[-1].num_cached_tokens


def test_a_prefix_is_pinned_beside_other_requests_listed_and_unpinned(engine: AsyncLLMEngine) -> None:
    prefix, others = clean(1, 2 * BLOCK), [clean(40 + i, 3) for i in range(4)]

    async def main() -> None:
        asked = [asyncio.ensure_future(collect(engine.generate(prompt, GREEDY))) for prompt in others]
        shown = await engine.pin_prefix(prefix)
        answers = await asyncio.gather(*asked)
        assert shown.resident
        assert [answer[-1].outputs[0].finish_reason for answer in answers] == ["length"] * 4
        assert await engine.pinned_prefixes() == [shown]
        assert await num_cached(engine, [*prefix, 70]) == 2 * BLOCK
        assert await engine.unpin_prefix(shown.id) is True
        assert await engine.unpin_prefix(shown.id) is False
        assert await engine.pinned_prefixes() == []
        assert await engine.reset_prefix_cache() is True
        assert await num_cached(engine, [*prefix, 70]) == 0

    run(main())


def test_what_is_refused_is_refused_as_by_an_llm(engine: AsyncLLMEngine) -> None:
    async def main() -> None:
        await engine.pin_prefix(clean(2, 6 * BLOCK))
        for prefix, message in (
            (clean(3, 3 * BLOCK), "of which pinned ones take 6; it needs 3"),
            ([65], "prefix must fill at least one KV block"),
        ):
            with pytest.raises(InvalidRequestError, match=message):
                await engine.pin_prefix(prefix)
        with pytest.raises(InvalidRequestError, match="^ttl must be"):
            await engine.pin_prefix(clean(4, BLOCK), ttl=0)
        assert len(await engine.pinned_prefixes()) == 1

    run(main())


def test_cancelling_a_pin_unpins_it_and_ends_its_request(engine: AsyncLLMEngine) -> None:
    gate = Gate(engine)

    async def main() -> None:
        pinning = asyncio.ensure_future(engine.pin_prefix(clean(5, 2 * BLOCK)))
        await until(lambda: len(inner(engine).scheduler.pins()) == 1 and inner(engine).has_unfinished_requests())
        pinning.cancel()
        gate.let(1)
        with pytest.raises(asyncio.CancelledError):
            await pinning
        gate.let(50)
        assert await engine.pinned_prefixes() == []
        assert inner(engine).scheduler.num_free_blocks == 16

    run(main())


def test_a_pin_that_cannot_be_computed_is_none(engine: AsyncLLMEngine) -> None:
    async def main() -> None:
        with pytest.raises(StepFailedError, match="the prefix could not be computed"):
            await engine.pin_prefix([65, 66, 67, POISON])
        assert await engine.pinned_prefixes() == []

        def fail() -> None:
            raise ZeroDivisionError

        worker_of(engine).before_step = fail
        with pytest.raises(StepFailedError, match="ZeroDivisionError"):
            await engine.pin_prefix(clean(6, BLOCK))
        worker_of(engine).before_step = None
        assert await engine.pinned_prefixes() == []

    run(main())


def test_after_shutdown_nothing_is_pinned_or_forgotten(engine: AsyncLLMEngine) -> None:
    engine.shutdown()

    async def main() -> None:
        for use in uses(engine):
            with pytest.raises(EngineClosedError):
                await use

    run(main())


def test_of_a_dead_engine_every_question_is_told_why(engine: AsyncLLMEngine) -> None:
    def die(*args: object, **named: object) -> None:
        raise SystemError("broken")

    async def main() -> None:
        inner(engine).abort_request = die  # a step that fails ends its requests, and that fails in turn
        worker_of(engine).before_step = die
        with pytest.raises(EngineDeadError):
            await collect(engine.generate([65], GREEDY))
        for use in uses(engine):
            with pytest.raises(EngineDeadError):
                await use

    run(main())


def uses(engine: AsyncLLMEngine) -> list[Any]:
    return [
        engine.pin_prefix(clean(7, BLOCK)),
        engine.pinned_prefixes(),
        engine.unpin_prefix(0),
        engine.reset_prefix_cache(),
    ]


def test_a_question_that_nobody_waits_for_any_more_is_not_asked(engine: AsyncLLMEngine) -> None:
    async def main() -> None:
        shown = await engine.pin_prefix(clean(8, BLOCK))
        gate = Gate(engine)
        running = asyncio.ensure_future(collect(engine.generate(clean(9, 2), GREEDY)))
        await until(inner(engine).has_unfinished_requests)  # its first step waits at the gate
        question = asyncio.ensure_future(engine.unpin_prefix(shown.id))
        await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        gate.let(50)
        assert (await running)[-1].finished
        assert await engine.pinned_prefixes() == [shown]

    run(main())
