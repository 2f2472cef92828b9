"""AsyncLLMEngine: the answers of the engine itself, whoever reads them, however late."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import PROMPTS, Gate, answer, collect, greedy, ids, inner, run, served, until
from engine.fakes import toy_engine

from fastpaged import (
    LLM,
    AsyncLLMEngine,
    EngineBusyError,
    EngineConfig,
    InvalidRequestError,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from fastpaged.engine.mailbox import Mailbox, Postman
from fastpaged.outputs import CompletionOutput, RequestMetrics


@pytest.fixture
def engine() -> Iterator[AsyncLLMEngine]:
    yield from served()


# ---- answers


def test_many_coroutines_get_each_the_answer_of_a_plain_run(engine: AsyncLLMEngine) -> None:
    async def all_at_once() -> list[list[int]]:
        return await asyncio.gather(*(ids(engine, prompt, greedy()) for prompt in PROMPTS))

    assert run(all_at_once()) == [answer(prompt) for prompt in PROMPTS]


def test_event_loops_of_several_threads_share_one_engine(engine: AsyncLLMEngine) -> None:
    found: dict[int, list[int]] = {}

    def one_loop(index: int) -> None:
        found[index] = run(ids(engine, PROMPTS[index], greedy()))

    threads = [threading.Thread(target=one_loop, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: answer(PROMPTS[index]) for index in range(4)}


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_reader_that_comes_late_finds_what_it_missed_as_one_output(
    engine: AsyncLLMEngine, kind: RequestOutputKind
) -> None:
    async def late() -> tuple[list[RequestOutput], str]:
        quick = engine.generate(PROMPTS[0], greedy(kind=RequestOutputKind.FINAL_ONLY))
        text = (await collect(quick))[-1].outputs[0].text
        outputs = engine.generate(PROMPTS[0], greedy(kind=kind), "late")
        async with aclosing(outputs):
            first = [await anext(outputs)]
            await until(lambda: "late" not in engine._thread._mailboxes)
            await asyncio.sleep(0)  # the letters that are on their way
            return first + await collect(outputs), text

    outputs, text = run(late())
    assert len(outputs) <= 2
    completions = [output.outputs[0] for output in outputs]
    if kind is RequestOutputKind.DELTA:
        assert [token_id for c in completions for token_id in c.token_ids] == answer(PROMPTS[0])
        assert "".join(c.text for c in completions) == text
    else:
        assert completions[-1].token_ids == answer(PROMPTS[0])
        assert completions[-1].text == text
    assert outputs[-1].finished
    assert completions[-1].finish_reason == "length"


def test_deltas_keep_their_logprobs_when_they_are_joined(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=9, logprobs=2, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )

    async def joined() -> list[RequestOutput]:
        gate = Gate(engine)
        outputs = engine.generate(PROMPTS[0], params, "a")
        async with aclosing(outputs):
            task = asyncio.ensure_future(anext(outputs))
            gate.let(1)
            first = await task
            gate.let(100)
            await until(lambda: "a" not in engine._thread._mailboxes)
            await asyncio.sleep(0)
            return [first, *await collect(outputs)]

    first, rest = run(joined())
    entries = [*(first.outputs[0].logprobs or ()), *(rest.outputs[0].logprobs or ())]
    assert [next(iter(entry)) for entry in entries] == answer(PROMPTS[0], 9)
    assert all(len(entry) >= 2 for entry in entries)
    assert rest.outputs[0].cumulative_logprob == pytest.approx(
        sum(entry[token_id].logprob for entry, token_id in zip(entries, answer(PROMPTS[0], 9), strict=True))
    )


def test_a_step_wakes_an_event_loop_once_however_many_read_there(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes = 0

    async def count() -> int:
        nonlocal wakes
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counted(*args: Any) -> Any:
            nonlocal wakes
            wakes += threading.current_thread().name == "fastpaged-engine"
            return call(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        gate = Gate(engine)
        gate.let(1000)
        await asyncio.gather(*(ids(engine, prompt, greedy()) for prompt in PROMPTS))
        return gate.num_steps

    num_steps = run(count())
    assert 0 < wakes <= num_steps


def test_the_event_loop_runs_while_the_engine_is_in_a_step(engine: AsyncLLMEngine) -> None:
    async def beside() -> list[int]:
        gate = Gate(engine)
        task = asyncio.ensure_future(ids(engine, PROMPTS[0], greedy()))
        await until(lambda: "fastpaged-engine" in {thread.name for thread in threading.enumerate()})
        for _ in range(100):
            await asyncio.sleep(0)  # would hang if a step held the loop
        assert not task.done()
        gate.let(1000)
        return await task

    assert run(beside()) == answer(PROMPTS[0])


def test_a_long_text_is_tokenised_off_the_event_loop(engine: AsyncLLMEngine) -> None:
    threads: list[str] = []
    tokenizer = inner(engine).tokenizer
    encode = type(tokenizer).encode

    def noting(text: str, **options: bool) -> list[int]:
        threads.append(threading.current_thread().name)
        return encode(tokenizer, text, **options)

    tokenizer.encode = noting

    async def both() -> None:
        await collect(engine.generate("AB", greedy(1)))
        with pytest.raises(InvalidRequestError, match="maximum context length"):
            await collect(engine.generate("A" * 5000, greedy(1)))

    run(both())
    assert threads[0] == "MainThread"
    assert threads[1] != "MainThread"


# ---- refusals


def test_a_bad_request_raises_at_its_reader_alone(engine: AsyncLLMEngine) -> None:
    async def mixed() -> list[Any]:
        return list(
            await asyncio.gather(ids(engine, PROMPTS[0], greedy()), ids(engine, [-1], greedy()), return_exceptions=True)
        )

    good, bad = run(mixed())
    assert good == answer(PROMPTS[0])
    assert isinstance(bad, InvalidRequestError)


def test_an_id_in_use_is_refused_and_the_first_request_is_unharmed(engine: AsyncLLMEngine) -> None:
    async def twice() -> list[Any]:
        return list(
            await asyncio.gather(
                collect(engine.generate(PROMPTS[0], greedy(), "a")),
                collect(engine.generate(PROMPTS[1], greedy(), "a")),
                return_exceptions=True,
            )
        )

    first, second = run(twice())
    assert first[-1].outputs[0].token_ids == answer(PROMPTS[0])
    assert isinstance(second, InvalidRequestError)


@pytest.mark.parametrize(
    "argument", [{"lora_request": "x"}, {"trace_headers": {"a": "b"}}, {"priority": 3}, {"data_parallel_rank": 1}]
)
def test_what_is_not_supported_is_refused_by_name(engine: AsyncLLMEngine, argument: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(argument))):
        run(collect(engine.generate(PROMPTS[0], greedy(), **argument)))


# ---- threads on what is not theirs


def test_a_second_thread_on_one_engine_is_told_so_and_changes_nothing() -> None:
    engine = toy_engine()
    engine.add_request("a", PROMPTS[0], greedy())
    inside, leave = threading.Event(), threading.Event()
    worker: Any = engine.worker

    def wait() -> None:
        inside.set()
        assert leave.wait(60)

    worker.before_step = wait
    thread = threading.Thread(target=engine.step)
    thread.start()
    assert inside.wait(60)
    for use in (engine.step, lambda: engine.add_request("b", PROMPTS[1], greedy()), engine.close):
        with pytest.raises(EngineBusyError, match="another thread"):
            use()
    with pytest.raises(EngineBusyError):
        engine.abort_request("a")
    leave.set()
    thread.join()
    worker.before_step = None
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].request_id == "a"
    assert outputs[-1].outputs[0].token_ids == answer(PROMPTS[0])


# ---- the same bits


def test_the_answers_are_those_of_the_plain_llm(tiny_llama: Path) -> None:
    prompts = ["The cat", "Once upon a time", "x", "And then the"]
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=12, logprobs=3, ignore_eos=True)
    settings: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64}
    with LLM(str(tiny_llama), **settings) as llm:
        plain = [output.outputs[0] for output in llm.generate(prompts, params)]
    engine = AsyncLLMEngine(EngineConfig(model=str(tiny_llama), **settings))

    async def all_at_once() -> list[CompletionOutput]:
        lists = await asyncio.gather(*(collect(engine.generate(prompt, params)) for prompt in prompts))
        return [outputs[-1].outputs[0] for outputs in lists]

    try:
        assert run(all_at_once()) == plain
    finally:
        engine.shutdown()


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_while_an_event_loop_is_held_up_a_mailbox_keeps_no_more_than_the_answer(kind: RequestOutputKind) -> None:
    async def kept() -> tuple[int, RequestOutput]:
        postman = Postman(asyncio.get_running_loop())
        mailbox = Mailbox(postman, kind)
        sent = []
        for count in range(1000):  # the loop does not come to deliver anything
            output = some_output(count)
            sent.append(weakref.ref(output))
            postman.send([(mailbox, output)])
        del output
        return sum(one() is not None for one in sent), await mailbox.take()

    num_kept, taken = run(kept())
    assert taken.metrics.num_generation_tokens == 999
    if kind is RequestOutputKind.DELTA:
        assert taken.outputs[0].token_ids == list(range(1000))
    else:
        assert taken.outputs[0].token_ids == [999]
        assert num_kept == 1


def some_output(count: int) -> RequestOutput:
    metrics = RequestMetrics(count, 0, 0, 0, 0.0, 0.0, None, None, None, None)
    completion = CompletionOutput(0, "", [count], None, None, None, None, None)
    return RequestOutput("a", None, [1], None, [completion], False, metrics)
