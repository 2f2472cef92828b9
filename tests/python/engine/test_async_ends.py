"""Every way an AsyncLLMEngine and its requests may end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import PROMPTS, Gate, answer, collect, greedy, ids, inner, run, served, until, worker_of
from engine.fakes import toy_engine

from fastpaged import (
    AsyncLLMEngine,
    EngineClosedError,
    EngineDeadError,
    InvalidRequestError,
    RequestOutput,
    StepFailedError,
)


@pytest.fixture
def engine() -> Iterator[AsyncLLMEngine]:
    yield from served()


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_cancelling_a_reader_aborts_its_request_before_the_next_step(engine: AsyncLLMEngine, steps: int) -> None:
    """Waiting, at its first token, and running; another request goes on."""

    async def cancelled() -> list[int]:
        gate = Gate(engine)
        other = asyncio.ensure_future(ids(engine, PROMPTS[1], greedy()))
        reader = asyncio.ensure_future(collect(engine.generate(PROMPTS[0], greedy(), "a")))
        gate.let(steps)
        await until(lambda: gate.num_steps == steps and inner(engine).has_request("a"))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        gate.let(2)  # the step that was under way, and the one after it
        await until(lambda: gate.num_steps == steps + 2)
        assert not inner(engine).has_request("a")
        gate.let(1000)
        return await other

    assert run(cancelled()) == answer(PROMPTS[1])


def test_leaving_the_loop_over_a_generator_aborts_when_it_is_closed(engine: AsyncLLMEngine) -> None:
    async def leave() -> None:
        outputs = engine.generate(PROMPTS[0], greedy(60), "a")
        async with aclosing(outputs):
            async for _ in outputs:
                break
        await until(lambda: not inner(engine).has_unfinished_requests())

    run(leave())


def test_abort_gives_the_reader_a_last_output(engine: AsyncLLMEngine) -> None:
    async def aborted() -> list[RequestOutput]:
        gate = Gate(engine)
        gate.let(3)
        reader = asyncio.ensure_future(collect(engine.generate(PROMPTS[0], greedy(), "a")))
        await until(lambda: gate.num_steps == 3)
        await engine.abort(["a", "nobody"])
        gate.let(1000)
        return await reader

    outputs = run(aborted())
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "abort"
    got = outputs[-1].outputs[0].token_ids
    assert got == answer(PROMPTS[0])[: len(got)]


def test_a_late_cancel_does_not_touch_a_new_request_of_the_same_name(engine: AsyncLLMEngine) -> None:
    async def again() -> list[int]:
        gate = Gate(engine)
        old = asyncio.ensure_future(collect(engine.generate(PROMPTS[0], greedy(), "a")))
        await until(lambda: inner(engine).has_request("a"))
        await engine.abort("a")
        gate.let(1)
        await until(lambda: not inner(engine).has_request("a"))
        new = asyncio.ensure_future(collect(engine.generate(PROMPTS[1], greedy(), "a")))
        await until(lambda: inner(engine).has_request("a"))
        old.cancel()
        await asyncio.gather(old, return_exceptions=True)
        gate.let(1000)
        return (await new)[-1].outputs[0].token_ids

    assert run(again()) == answer(PROMPTS[1])


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(engine: AsyncLLMEngine) -> None:
    def fail_once() -> None:
        worker_of(engine).before_step = None
        raise MemoryError("no room")

    worker_of(engine).before_step = fail_once

    async def failing() -> list[Any]:
        return await asyncio.gather(*(ids(engine, prompt, greedy()) for prompt in PROMPTS), return_exceptions=True)

    results = run(failing())
    failed = [result for result in results if isinstance(result, Exception)]
    assert failed
    assert all(isinstance(error, StepFailedError) and isinstance(error.__cause__, MemoryError) for error in failed)
    assert all(
        result == answer(prompt) for prompt, result in zip(PROMPTS, results, strict=True) if isinstance(result, list)
    )
    assert run(ids(engine, PROMPTS[0], greedy())) == answer(PROMPTS[0])
    assert not engine.errored


def test_an_engine_that_dies_says_so_to_everybody() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine())

    def die() -> None:
        raise SystemExit("out")

    worker_of(engine).before_step = die

    async def dying() -> list[Any]:
        return await asyncio.gather(*(ids(engine, prompt, greedy()) for prompt in PROMPTS), return_exceptions=True)

    assert {type(result) for result in run(dying())} == {EngineDeadError}
    assert engine.errored and engine.is_stopped and isinstance(engine.dead_error, EngineDeadError)
    with pytest.raises(EngineDeadError, match="out"):
        run(engine.check_health())
    with pytest.raises((EngineDeadError, EngineClosedError)):
        run(ids(engine, PROMPTS[0], greedy()))
    engine.shutdown()
    assert worker_of(engine).num_closed == 1


def test_shutdown_with_time_lets_requests_finish_and_takes_no_more() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine())

    async def drained() -> list[int]:
        gate = Gate(engine)
        reader = asyncio.ensure_future(ids(engine, PROMPTS[0], greedy()))
        await until(lambda: inner(engine).has_unfinished_requests())
        closing = asyncio.ensure_future(engine.aclose(60))
        await until(lambda: engine.is_stopped)
        with pytest.raises(EngineClosedError):
            await ids(engine, PROMPTS[1], greedy())
        gate.let(1000)
        await closing
        return await reader

    assert run(drained()) == answer(PROMPTS[0])
    assert worker_of(engine).num_closed == 1
    engine.shutdown()  # again


def test_shutdown_without_time_aborts_what_is_in_flight() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine())

    async def cut() -> RequestOutput:
        gate = Gate(engine)
        reader = asyncio.ensure_future(collect(engine.generate(PROMPTS[0], greedy())))
        await until(lambda: inner(engine).has_unfinished_requests())
        closing = asyncio.ensure_future(engine.aclose())
        await until(lambda: not engine._thread._commands.empty())
        gate.let(1000)
        await closing
        return (await reader)[-1]

    output = run(cut())
    assert output.finished
    assert output.outputs[0].finish_reason == "abort"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_timeout_that_is_no_time_is_refused(engine: AsyncLLMEngine, timeout: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timeout"):
        engine.shutdown(timeout)


def test_a_closed_event_loop_takes_its_requests_with_it(engine: AsyncLLMEngine) -> None:
    gate = Gate(engine)
    loop = asyncio.new_event_loop()
    outputs = engine.generate(PROMPTS[0], greedy(), "a")
    reader = loop.create_task(collect(outputs))
    while not inner(engine).has_request("a"):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.let(1000)
    assert run(ids(engine, PROMPTS[1], greedy())) == answer(PROMPTS[1])
    assert not inner(engine).has_request("a")
    reader._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_step_that_fails_when_an_event_loop_has_closed_leaves_the_engine_to_others(engine: AsyncLLMEngine) -> None:
    let_on = threading.Event()

    def fail() -> None:
        assert let_on.wait(60)
        worker_of(engine).before_step = lambda: None
        raise RuntimeError("broken")

    worker_of(engine).before_step = fail
    loop = asyncio.new_event_loop()
    readers = [loop.create_task(collect(engine.generate(PROMPTS[0], greedy(), name))) for name in "ab"]
    while not (inner(engine).has_request("a") and not engine._thread._commands.qsize()):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    let_on.set()
    assert run(ids(engine, PROMPTS[1], greedy())) == answer(PROMPTS[1])
    assert not engine.errored
    for reader in readers:
        reader._log_destroy_pending = False  # type: ignore[attr-defined]


def test_an_engine_that_is_dropped_ends_its_thread() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine())
    thread = engine._thread._thread
    del engine
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_process_that_forgets_its_engine_ends_all_the_same(tiny_llama: Path) -> None:
    script = """
import asyncio, sys
from fastpaged import AsyncLLMEngine, EngineConfig, SamplingParams
engine = AsyncLLMEngine(EngineConfig(model=sys.argv[1], isa="scalar", num_threads=1, num_blocks=64))
async def first():
    async for output in engine.generate("a", SamplingParams(max_tokens=200, ignore_eos=True)):
        return output
print(len(asyncio.run(first()).prompt_token_ids))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tiny_llama)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
