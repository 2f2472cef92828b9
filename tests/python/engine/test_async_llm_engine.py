"""AsyncLLMEngine: the answers of the engine itself, whoever reads them, however late; and every way it may end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from engine.fakes import POISON, ToyWorker, toy_engine, toy_greedy

from fastpaged import (
    LLM,
    AsyncLLMEngine,
    EngineBusyError,
    EngineClosedError,
    EngineConfig,
    EngineDeadError,
    InvalidRequestError,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StepFailedError,
)
from fastpaged.engine.mailbox import Mailbox, Postman
from fastpaged.outputs import CompletionOutput, RequestMetrics

T = TypeVar("T")
# Whose plain answers stay clear of the token after which the toy model's logits are NaN.
PROMPTS = [p for p in ([65 + i, 70, 75 + i] for i in range(40)) if POISON not in toy_greedy(p, 60, stops=())][:12]


def greedy(max_tokens: int = 20, kind: RequestOutputKind = RequestOutputKind.CUMULATIVE) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=kind)


def answer(prompt: list[int], max_tokens: int = 20) -> list[int]:
    return toy_greedy(prompt, max_tokens, stops=())


@pytest.fixture
def engine() -> Iterator[AsyncLLMEngine]:
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
        return await asyncio.gather(
            ids(engine, PROMPTS[0], greedy()), ids(engine, [-1], greedy()), return_exceptions=True
        )

    good, bad = run(mixed())
    assert good == answer(PROMPTS[0])
    assert isinstance(bad, InvalidRequestError)


def test_an_id_in_use_is_refused_and_the_first_request_is_unharmed(engine: AsyncLLMEngine) -> None:
    async def twice() -> list[Any]:
        return await asyncio.gather(
            collect(engine.generate(PROMPTS[0], greedy(), "a")),
            collect(engine.generate(PROMPTS[1], greedy(), "a")),
            return_exceptions=True,
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


# ---- ends


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


def test_a_mailbox_keeps_one_output_of_those_that_hold_everything() -> None:
    async def kept() -> int:
        mailbox = Mailbox(Postman(asyncio.get_running_loop()), RequestOutputKind.CUMULATIVE)
        for count in range(1000):
            mailbox.put(some_output(count))
        assert len(mailbox._outputs) == 1
        return (await mailbox.take()).metrics.num_generation_tokens

    assert run(kept()) == 999


def some_output(count: int) -> RequestOutput:
    metrics = RequestMetrics(count, 0, 0.0, 0.0, None, None, None, None)
    completion = CompletionOutput(0, "", [], None, None, None, None, None)
    return RequestOutput("a", None, [1], None, [completion], False, metrics)
