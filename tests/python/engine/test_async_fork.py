"""AsyncLLMEngine in a forked child: its thread is not there, and nothing waits for it."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from engine.async_tools import PROMPTS, answer, collect, greedy, ids, run, served
from engine.fakes import toy_engine

from fastpaged import AsyncLLMEngine, EngineDeadError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")


@pytest.fixture
def engine() -> Iterator[AsyncLLMEngine]:
    yield from served()


def in_a_child(work: Callable[[], object]) -> str:
    """What work() returned in a forked child, or the error it raised, in words. A child that hangs is killed."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
        pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            try:
                said = repr(work())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write_end, said.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        said = stream.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with status {status} and said {said!r}"
    return said


def end(engine: AsyncLLMEngine) -> str:
    run(engine.abort("a"))
    engine.shutdown(60)
    run(engine.aclose())
    return "ended"


@pytest.mark.parametrize("is_door_held", [False, True])
def test_a_forked_child_is_told_at_once_to_make_its_own_engine(engine: AsyncLLMEngine, is_door_held: bool) -> None:
    """Also where another thread was at the door while the process forked."""
    with engine._thread._door if is_door_held else nullcontext():
        asked = [
            in_a_child(lambda: run(collect(engine.generate(PROMPTS[0], greedy())))),
            in_a_child(lambda: run(engine.check_health())),
        ]
        state = in_a_child(lambda: (engine.is_running, engine.is_stopped, engine.errored, type(engine.dead_error)))
        ended = in_a_child(lambda: end(engine))
    assert all(said.startswith("EngineDeadError: ") and "a forked child must make its own" in said for said in asked)
    assert state == repr((False, True, True, EngineDeadError))
    assert ended == repr("ended")
    assert engine.is_running and engine.dead_error is None
    assert run(ids(engine, PROMPTS[0], greedy())) == answer(PROMPTS[0])


def test_dropping_the_engine_in_a_forked_child_leaves_the_parent_s_alone() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine())
    engines = [engine]

    def drop() -> bool:
        finalizer = engines[0]._finalizer
        engines.clear()
        finalizer()
        gc.collect()
        return finalizer.alive

    assert in_a_child(drop) == "False"
    assert run(ids(engine, PROMPTS[0], greedy())) == answer(PROMPTS[0])
    engine.shutdown()


def test_a_forked_child_may_make_its_own_engine(engine: AsyncLLMEngine) -> None:
    def own() -> list[int]:
        mine = AsyncLLMEngine.with_engine(toy_engine())
        try:
            return run(ids(mine, PROMPTS[1], greedy()))
        finally:
            mine.shutdown()

    assert in_a_child(own) == repr(answer(PROMPTS[1]))
    assert run(ids(engine, PROMPTS[0], greedy())) == answer(PROMPTS[0])
