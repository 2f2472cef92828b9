"""AsyncLLMEngine while a long prompt is tokenised off the event loop: the request has its id, and may be aborted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from engine.async_tools import PROMPTS, Gate, answer, collect, greedy, ids, inner, run, served, until

from fastpaged import AsyncLLMEngine, InvalidRequestError, RequestOutput

LONG = "A" * 5000


@pytest.fixture
def engine() -> Iterator[AsyncLLMEngine]:
    yield from served()


class SlowTokenizer:
    """Makes PROMPTS[0] of every text, once it is let."""

    def __init__(self, engine: AsyncLLMEngine) -> None:
        self.started, self.let = threading.Event(), threading.Event()
        inner(engine).tokenizer.encode = self._encode

    def _encode(self, text: str, **options: bool) -> list[int]:
        self.started.set()
        assert self.let.wait(60)
        return PROMPTS[0]


async def read(engine: AsyncLLMEngine, request_id: str) -> list[RequestOutput]:
    return await collect(engine.generate(LONG, greedy(), request_id))


def test_an_abort_meanwhile_ends_the_request_and_nothing_of_it_is_computed(engine: AsyncLLMEngine) -> None:
    async def aborted() -> list[RequestOutput]:
        gate = Gate(engine)
        gate.let(1000)
        slow = SlowTokenizer(engine)
        reader = asyncio.ensure_future(read(engine, "a"))
        await until(slow.started.is_set)
        await engine.abort("a")
        slow.let.set()
        outputs = await reader
        assert gate.num_steps == 0
        return outputs

    (output,) = run(aborted())
    assert output.finished
    assert (output.prompt, output.prompt_token_ids) == (LONG, PROMPTS[0])
    assert [(c.token_ids, c.text, c.finish_reason) for c in output.outputs] == [([], "", "abort")]


def test_an_abort_meanwhile_ends_one_request_and_not_the_next_of_its_name(engine: AsyncLLMEngine) -> None:
    async def again() -> list[int]:
        slow = SlowTokenizer(engine)
        first = asyncio.ensure_future(read(engine, "a"))
        await until(slow.started.is_set)
        await engine.abort(["a", "b"])
        slow.let.set()
        await first
        return (await read(engine, "a"))[-1].outputs[0].token_ids

    assert run(again()) == answer(PROMPTS[0])


def test_an_id_is_in_use_from_the_beginning(engine: AsyncLLMEngine) -> None:
    async def twice() -> list[int]:
        slow = SlowTokenizer(engine)
        first = asyncio.ensure_future(read(engine, "a"))
        await until(slow.started.is_set)
        with pytest.raises(InvalidRequestError, match="request_id must be new, got 'a', which is still unfinished"):
            await collect(engine.generate(PROMPTS[1], greedy(), "a"))
        slow.let.set()
        return (await first)[-1].outputs[0].token_ids

    assert run(twice()) == answer(PROMPTS[0])


def test_cancelling_the_reader_meanwhile_leaves_nothing(engine: AsyncLLMEngine) -> None:
    async def cancelled() -> list[int]:
        slow = SlowTokenizer(engine)
        reader = asyncio.ensure_future(read(engine, "a"))
        await until(slow.started.is_set)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert engine._preparing == {}
        slow.let.set()
        return (await read(engine, "a"))[-1].outputs[0].token_ids

    assert run(cancelled()) == answer(PROMPTS[0])


def test_a_refused_prompt_gives_its_id_free(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="maximum context length"):
        run(read(engine, "a"))
    assert engine._preparing == {}


@pytest.mark.parametrize("request_id", [[["a"]], ["a", 3], [None]])
def test_an_abort_of_what_is_no_id_is_refused_and_harms_nobody(engine: AsyncLLMEngine, request_id: Any) -> None:
    async def abort() -> list[int]:
        reader = asyncio.ensure_future(ids(engine, PROMPTS[0], greedy()))
        with pytest.raises(InvalidRequestError, match="request_id must be a string or strings"):
            await engine.abort(request_id)
        return await reader

    assert run(abort()) == answer(PROMPTS[0])
    assert engine.is_running


@pytest.mark.parametrize(("request_id", "params"), [(7, greedy()), ("", greedy()), (["a"], greedy()), ("a", {})])
def test_an_id_or_params_that_are_none_are_refused(engine: AsyncLLMEngine, request_id: Any, params: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"request_id must be a non-empty|sampling_params must be a Sampling"):
        run(collect(engine.generate(PROMPTS[0], params, request_id)))
