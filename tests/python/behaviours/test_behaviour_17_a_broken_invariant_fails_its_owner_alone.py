"""Elsewhere: "memory leak detected", and the whole server is gone. Here the blocks concerned are put aside, their owner
fails, and nobody else notices."""

from __future__ import annotations

import logging

import pytest
from engine.async_tools import PROMPTS, answer, collect, greedy, run
from engine.fake_clock import run_to_the_end
from engine.fakes import toy_engine

from fastpaged import AsyncLLMEngine


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("victim", range(3))
def test_behaviour_17_the_owner_fails_its_blocks_are_put_aside_and_the_engine_goes_on(
    victim: int, overlaps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = toy_engine(async_scheduling=overlaps)
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], greedy(12))
    for _ in range(4):
        engine.step()
    engine.scheduler._give_back_too_early(victim)
    with caplog.at_level(logging.ERROR):
        finished = run_to_the_end(engine)
    assert finished[str(victim)].outputs[0].finish_reason == "error"
    assert {name: output.outputs[0].token_ids for name, output in finished.items() if name != str(victim)} == {
        str(i): answer(PROMPTS[i], 12) for i in range(3) if i != victim
    }
    assert f"fail: '{victim}'" in caplog.text
    assert engine.scheduler.num_quarantined_blocks == 1
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks - 1
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], greedy(12))
    assert {output.outputs[0].finish_reason for output in run_to_the_end(engine).values()} == {"length"}


def test_behaviour_17_coroutines_of_others_get_their_answers() -> None:
    inside = toy_engine()
    engine = AsyncLLMEngine.with_engine(inside)
    steps = 0

    def break_one() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            inside.scheduler._give_back_too_early(1)

    inside.worker.before_step = break_one  # type: ignore[attr-defined]

    async def ask() -> list[str | None]:
        import asyncio

        outputs = await asyncio.gather(*(collect(engine.generate(PROMPTS[i], greedy(12), str(i))) for i in range(3)))
        return [read[-1].outputs[0].finish_reason for read in outputs]

    try:
        assert run(ask()).count("error") == 1
        assert not engine.errored
        assert engine.is_running
    finally:
        engine.shutdown()
