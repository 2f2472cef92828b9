"""What the tests of AsyncLLMEngine share: a gate before every step, and how to wait without a clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from engine.fakes import POISON, ToyWorker, toy_engine, toy_greedy

from fastpaged import AsyncLLMEngine, RequestOutput, RequestOutputKind, SamplingParams

T = TypeVar("T")
# Whose plain answers stay clear of the token after which the toy model's logits are NaN.
PROMPTS = [p for p in ([65 + i, 70, 75 + i] for i in range(40)) if POISON not in toy_greedy(p, 60, stops=())][:12]


def greedy(max_tokens: int = 20, kind: RequestOutputKind = RequestOutputKind.CUMULATIVE) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=kind)


def answer(prompt: list[int], max_tokens: int = 20) -> list[int]:
    return toy_greedy(prompt, max_tokens, stops=())


def served() -> Iterator[AsyncLLMEngine]:
    """For a fixture: a toy engine, of which nothing may be left at the end."""
    engine = AsyncLLMEngine.with_engine(toy_engine())
    yield engine
    scheduler = inner(engine).scheduler
    engine.shutdown()
    assert scheduler.num_free_blocks == scheduler.num_blocks
    assert engine._thread._mailboxes == {}


def inner(engine: AsyncLLMEngine) -> Any:
    return engine._thread.engine


def worker_of(engine: AsyncLLMEngine) -> ToyWorker:
    worker = inner(engine).worker
    assert isinstance(worker, ToyWorker)
    return worker


async def collect(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


async def ids(engine: AsyncLLMEngine, prompt: list[int], params: SamplingParams) -> list[int]:
    return (await collect(engine.generate(prompt, params)))[-1].outputs[0].token_ids


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """No test waits for ever."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


class Gate:
    """Stops the engine before every step until it is let on."""

    def __init__(self, engine: AsyncLLMEngine) -> None:
        self._permits = threading.Semaphore(0)
        self.num_steps = 0
        worker_of(engine).before_step = self._wait

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    def _wait(self) -> None:
        assert self._permits.acquire(timeout=60)
        self.num_steps += 1
