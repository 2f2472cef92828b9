"""A step that fails, wherever it does: whose step it was is told so, everybody else gets the answer of a quiet day."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import PROMPTS, answer, greedy, ids, inner, run, until
from engine.fake_clock import on_fake_clock
from engine.fakes import toy_engine

from fastpaged import AsyncLLMEngine, LLMEngine, StepFailedError
from fastpaged.engine.fault_trace import MOST
from fastpaged.engine.phase_watch import SCHEDULE, UPDATE

# Stage -> (whose method, its name). In the order of a step.
STAGES: dict[str, tuple[Callable[[LLMEngine], Any], str]] = {
    "pins": (lambda engine: engine._pins, "expire"),
    "schedule": (lambda engine: engine, "_planned"),
    "copies": (lambda engine: engine.worker, "copy"),
    "compute": (lambda engine: engine.worker, "execute"),
    "costs": (lambda engine: engine.preemptions, "note_step"),
    "look": (lambda engine: engine._containment, "look"),
}


def fail_at(owner: Any, name: str, call: int, error: BaseException) -> None:
    """The method raises at its call of this number, and works before and after."""
    works, calls = getattr(owner, name), [0]

    def method(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return works(*args, **kwargs)

    setattr(owner, name, method)


async def all_at_once(engine: AsyncLLMEngine, asked: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Their results, or what they raised. All are there before the engine plans a step."""
    held = threading.Event()
    holding = engine._thread.ask(lambda _: held.wait(60))
    tasks = [asyncio.ensure_future(one) for one in asked]
    await until(lambda: engine._thread._commands.qsize() == len(tasks))
    held.set()
    assert holding.result(60)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def assert_nothing_is_held(engine: LLMEngine) -> None:
    engine.scheduler.check_invariants()
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [RuntimeError("broken"), MemoryError(), KeyError("x")])
def test_a_step_that_fails_ends_its_own_requests_and_no_other(
    stage: str, error: Exception, overlaps: bool, tmp_path: Path
) -> None:
    inner_engine = toy_engine(max_num_seqs=1, async_scheduling=overlaps, fault_trace_dir=str(tmp_path))
    owner, name = STAGES[stage]
    fail_at(owner(inner_engine), name, 3, error)
    engine = AsyncLLMEngine.with_engine(inner_engine)

    async def all_of_them() -> list[Any]:
        return await all_at_once(engine, [ids(engine, prompt, greedy()) for prompt in PROMPTS])

    try:
        results = run(all_of_them())
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert isinstance(result, StepFailedError) or result == answer(prompt)
        has_plan = stage not in ("pins", "schedule")
        num_failed = sum(isinstance(result, StepFailedError) for result in results)
        # One whose outputs were made in that step, and one that is computed already, may both be its own.
        assert num_failed <= ((2 if overlaps else 1) if has_plan else len(PROMPTS))
        assert run(ids(engine, PROMPTS[0], greedy())) == answer(PROMPTS[0])
        assert not engine.errored
        assert_nothing_is_held(inner(engine))
        if num_failed > 0:
            [path] = tmp_path.iterdir()
            trace = json.loads(path.read_text(encoding="utf-8"))
            assert repr(error) == trace["error"]
            assert len(trace["failed_requests"]) == num_failed
            assert (trace["plan"] is not None) == has_plan
    finally:
        engine.shutdown()


def test_a_fault_that_never_ends_ends_every_request_and_fills_no_disk(tmp_path: Path) -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine(max_num_seqs=1, fault_trace_dir=str(tmp_path)))

    def fail() -> None:
        raise RuntimeError("always")

    inner(engine).worker.before_step = fail  # type: ignore[attr-defined]

    async def many() -> list[Any]:
        return await asyncio.gather(*(ids(engine, PROMPTS[0], greedy()) for _ in range(40)), return_exceptions=True)

    try:
        assert all(isinstance(result, StepFailedError) for result in run(many()))
        assert len(list(tmp_path.iterdir())) == MOST
        assert_nothing_is_held(inner(engine))
    finally:
        engine.shutdown()


def test_the_trace_holds_nothing_of_what_was_asked(tmp_path: Path) -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine(fault_trace_dir=str(tmp_path)))
    fail_at(inner(engine).worker, "execute", 2, RuntimeError("broken"))

    async def ask() -> list[Any]:
        return list(await asyncio.gather(ids(engine, PROMPTS[0], greedy()), return_exceptions=True))

    try:
        [result] = run(ask())
        assert isinstance(result, StepFailedError)
        [path] = tmp_path.iterdir()
        trace = json.loads(path.read_text(encoding="utf-8"))
        assert set(trace) == {
            "time", "version", "error", "traceback", "failed_requests", "model", "isa", "config", "plan", "scheduler",
        }  # fmt: skip
        assert trace["scheduler"]["num_running"] == 1
        assert trace["plan"]["rows"]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_request_that_finished_in_the_step_that_failed_is_told_so(overlaps: bool, tmp_path: Path) -> None:
    inner_engine = toy_engine(max_num_seqs=2, async_scheduling=overlaps, fault_trace_dir=str(tmp_path))
    fail_at(inner_engine, "_note_step", 4, KeyError("after the outputs were made"))
    engine = AsyncLLMEngine.with_engine(inner_engine)

    async def three() -> list[Any]:
        lengths = (4, 20, 20)  # the first ends in its 4th step, and the last waits for it
        asked = [ids(engine, prompt, greedy(length)) for prompt, length in zip(PROMPTS, lengths, strict=False)]
        return await all_at_once(engine, asked)

    try:
        first, second, third = run(three())
        assert isinstance(first, StepFailedError)
        assert isinstance(second, StepFailedError)
        assert third == answer(PROMPTS[2])
        assert_nothing_is_held(inner(engine))
    finally:
        engine.shutdown()


def test_a_request_whose_time_was_up_in_the_step_that_failed_is_told_so(tmp_path: Path) -> None:
    inner_engine = toy_engine(max_num_seqs=1, fault_trace_dir=str(tmp_path))
    clock = on_fake_clock(inner_engine)
    watched, steps = inner_engine._watch.end, [0]

    def end(phase: int, **copies: int) -> None:
        watched(phase, **copies)
        if phase == SCHEDULE:
            steps[0] += 1
            if steps[0] == 3:
                clock.pass_seconds(9)  # of which the next plan hears
        elif phase == UPDATE and steps[0] == 4:
            raise KeyError("behind the scheduler's update, before outputs are made")

    inner_engine._watch.end = end  # type: ignore[method-assign]
    engine = AsyncLLMEngine.with_engine(inner_engine)

    async def timed() -> list[int]:
        outputs = [output async for output in engine.generate(PROMPTS[1], greedy(), deadline=5.0)]
        return outputs[-1].outputs[0].token_ids

    try:
        asked = [ids(engine, PROMPTS[0], greedy()), timed(), ids(engine, PROMPTS[2], greedy())]
        first, late, third = run(all_at_once(engine, asked))
        assert isinstance(first, StepFailedError)
        assert isinstance(late, StepFailedError)
        assert third == answer(PROMPTS[2])
        assert_nothing_is_held(inner(engine))
    finally:
        engine.shutdown()
