"""async_scheduling: outputs are made while the next step is computed, and nobody can tell from the answers."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine.fakes import POISON, VOCAB_SIZE, toy_engine

from fastpaged import LLM, SamplingParams
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.step_profile import StepProfile
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import RequestOutputKind


@dataclass(frozen=True)
class Request:
    """at: the step before which it comes. aborted_at: the step before which its caller goes, if ever."""

    id: str
    at: int
    prompt: list[int]
    params: SamplingParams
    aborted_at: int | None


def some_requests(random_: random.Random) -> list[Request]:
    requests = []
    for i in range(random_.randint(1, 12)):
        at = random_.randint(0, 12)
        params = SamplingParams(
            max_tokens=random_.randint(1, 20),
            temperature=random_.choice([0.0, 0.0, 1.0]),
            seed=random_.choice([None, 7]),
            stop=[chr(random_.randint(1, VOCAB_SIZE - 1)) for _ in range(random_.choice([0, 8, 40]))],
            logprobs=random_.choice([None, 2]),
            prompt_logprobs=random_.choice([None, None, 1]),
            output_kind=random_.choice(list(RequestOutputKind)),
            repetition_penalty=random_.choice([1.0, 1.3]),
        )
        prompt = [random_.randint(5, VOCAB_SIZE - 1) for _ in range(random_.randint(1, 20))]
        prompt += [POISON] if random_.random() < 0.1 else []
        aborted_at = at + random_.randint(0, 8) if random_.random() < 0.2 else None
        requests.append(Request(f"r{i}", at, prompt, params, aborted_at))
    return requests


@dataclass
class Answer:
    """All that a caller heard of one request."""

    token_ids: list[int]
    text: str
    logprobs: list[Any]
    finish_reason: str | None = None
    stop_reason: object = None
    prompt_logprobs: Any = None
    num_generation_tokens: int = 0

    def hear(self, output: RequestOutput, kind: RequestOutputKind) -> None:
        completion = output.outputs[0]
        if kind is not RequestOutputKind.DELTA:
            self.token_ids, self.text, self.logprobs = [], "", []
        self.token_ids += completion.token_ids
        self.text += completion.text
        self.logprobs += completion.logprobs or []
        self.finish_reason, self.stop_reason = completion.finish_reason, completion.stop_reason
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.num_generation_tokens = output.metrics.num_generation_tokens


def answers(engine: LLMEngine, requests: list[Request]) -> dict[str, Answer]:
    """Everybody comes and goes at their steps; the scheduler is whole after each of them."""
    heard = {request.id: Answer([], "", []) for request in requests}
    kinds = {request.id: request.params.output_kind for request in requests}
    for step in range(400):
        for request in requests:
            if request.at == step:
                engine.add_request(request.id, request.prompt, request.params)
            if request.aborted_at == step:
                aborted = engine.abort_request(request.id)
                if aborted is not None:
                    heard[request.id].hear(aborted, kinds[request.id])
        for output in engine.step():
            heard[output.request_id].hear(output, kinds[output.request_id])
        engine.scheduler.check_invariants()
    assert not engine.has_unfinished_requests()
    return heard


def settle(engine: LLMEngine) -> None:
    """No block and no request is left, with whatever was in flight."""
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert engine.scheduler.num_free_host_blocks == engine.scheduler.num_host_blocks
    assert engine.scheduler.num_running == engine.scheduler.num_waiting == engine.scheduler.num_swapped == 0
    engine.scheduler.check_invariants()


LIMITS: list[Mapping[str, Any]] = [
    {},
    {"num_blocks": 12, "max_num_seqs": 4},
    {"num_blocks": 12, "num_host_blocks": 12, "preemption_mode": "swap", "max_num_batched_tokens": 16},
]


@pytest.mark.parametrize("limits", LIMITS, ids=["roomy", "tight", "swapping"])
def test_answers_usage_and_logprobs_are_the_same_with_and_without_it(limits: Mapping[str, Any]) -> None:
    num_stopped = num_aborted = 0
    for seed in range(60):
        requests = some_requests(random.Random(seed))
        plain_engine = toy_engine(**limits)
        engine = toy_engine(async_scheduling=True, **limits)
        plain, overlapped = answers(plain_engine, requests), answers(engine, requests)
        for request in requests:
            one, other = plain[request.id], overlapped[request.id]
            if "abort" in (one.finish_reason, other.finish_reason):
                # How far an aborted request came depends on its company's steps; what it said does not.
                length = min(len(one.token_ids), len(other.token_ids))
                assert one.token_ids[:length] == other.token_ids[:length], (seed, request)
                num_aborted += 1
            else:
                assert one == other, (seed, request)
            assert other.num_generation_tokens == len(other.token_ids), (seed, request)
            num_stopped += isinstance(other.stop_reason, str)
        settle(engine)
        engine.close()
        plain_engine.close()
    assert num_stopped > 50
    assert num_aborted > 10


def test_each_step_returns_the_outputs_of_one_plan_and_computes_the_next() -> None:
    engine = toy_engine(async_scheduling=True)
    plain = toy_engine()
    for one in (engine, plain):
        one.add_request("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    for step in range(5):
        assert [o.outputs[0].token_ids for o in engine.step()] == [o.outputs[0].token_ids for o in plain.step()], step
        in_flight = engine._in_flight
        assert (in_flight is not None) == (step < 4)  # nothing is computed that nobody asked for
    assert engine.step() == []


def test_a_stop_string_ends_a_request_whose_next_token_is_in_flight_and_leaves_no_trace_of_that() -> None:
    text = toy_engine()
    text.add_request("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    outputs: list[RequestOutput] = []
    while text.has_unfinished_requests():
        outputs += text.step()
    stop = outputs[-1].outputs[0].text[4]

    engine = toy_engine(async_scheduling=True)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=[stop], logprobs=0)
    engine.add_request("a", [5, 6, 7], params)
    last = None
    while engine.has_unfinished_requests():
        last = engine.step()[-1]
    assert engine._in_flight is not None
    settle(engine)
    assert last is not None and last.outputs[0].stop_reason == stop
    completion = last.outputs[0]
    assert last.metrics.num_generation_tokens == len(completion.token_ids) == len(completion.logprobs or ())
    # A request that comes now is served as if nothing had been left behind.
    engine.add_request("b", [5, 6, 7], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    heard: list[RequestOutput] = []
    for _ in range(4):
        heard += engine.step()
    assert [o.outputs[0].token_ids for o in heard][-1] == outputs[1].outputs[0].token_ids
    settle(engine)
    engine.close()


def test_what_fails_in_flight_is_raised_by_the_next_step_and_the_engine_goes_on() -> None:
    engine = toy_engine(async_scheduling=True)
    worker: Any = engine.worker
    engine.add_request("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    first = engine.step()
    assert len(first) == 1

    def fail() -> None:
        worker.before_step = None
        raise ZeroDivisionError("in flight")

    worker.before_step = fail
    with pytest.raises(ZeroDivisionError, match="in flight"):
        engine.step()
    heard: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        heard += engine.step()
    plain = toy_engine()
    plain.add_request("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    expected: list[RequestOutput] = []
    while plain.has_unfinished_requests():
        expected += plain.step()
    assert heard[-1].outputs[0].token_ids == expected[-1].outputs[0].token_ids
    settle(engine)


def test_what_cannot_be_started_loses_no_output_and_is_planned_anew() -> None:
    engine = toy_engine(async_scheduling=True)
    fail = iter([False, True, False, False, False, False])

    def planned() -> None:
        if next(fail):
            raise ZeroDivisionError("not started")

    engine.on_planned = planned
    engine.add_request("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    heard: list[RequestOutput] = []
    for _ in range(3):
        heard += engine.step()
    assert [len(output.outputs[0].token_ids) for output in heard] == [1, 2, 3]
    settle(engine)


# ---- with a model, whose steps are computed on a thread of their own


@pytest.fixture
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), num_threads=2, num_blocks=64, async_scheduling=True) as llm:
        yield llm


def everything(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (o.outputs[0].token_ids, o.outputs[0].text, list(o.outputs[0].logprobs or ()), o.outputs[0].finish_reason,
         list(o.prompt_logprobs or ()))
        for o in outputs
    ]  # fmt: skip


def test_a_model_answers_the_same_bits_with_it(llm: LLM, tiny_llama: Path) -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=12, logprobs=3),
        SamplingParams(temperature=0.9, seed=4, max_tokens=9, stop=["e"], prompt_logprobs=1),
        SamplingParams(temperature=1.0, seed=5, max_tokens=20, top_p=0.8, repetition_penalty=1.2, logprobs=0),
    ] * 4
    prompts = [f"the cat number {i} is in the" for i in range(len(params))]
    with LLM(str(tiny_llama), num_threads=2, num_blocks=64) as plain:
        expected = everything(plain.generate(prompts, params))
    for _ in range(3):
        assert everything(llm.generate(prompts, params)) == expected
    settle(llm.engine)


def test_a_profiled_engine_computes_its_steps_one_by_one(llm: LLM) -> None:
    profile = StepProfile()
    profile.attach(llm.engine)
    llm.generate("the cat", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert llm.engine._in_flight is None
    phases = profile.as_dict()["phases"]
    assert phases["forward"] > 0 and phases["sample"] > 0


def test_an_engine_may_be_closed_or_dropped_with_a_step_in_flight(tiny_llama: Path) -> None:
    for close in (True, False):
        llm = LLM(str(tiny_llama), num_threads=2, num_blocks=64, async_scheduling=True)
        llm.engine.add_request("a", "the cat", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        assert len(llm.engine.step()) == 1
        assert llm.engine._in_flight is not None
        if close:
            llm.engine.close()
        del llm


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_is_told_and_waits_for_nothing(llm: LLM) -> None:
    llm.engine.add_request("a", "the cat", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    llm.engine.step()
    assert llm.engine._in_flight is not None

    def child() -> bool:
        with pytest.raises(RuntimeError, match="a forked child must make its own engine"):
            llm.engine.step()
        llm.engine.close()
        return True

    assert in_a_child(child)
    heard: list[RequestOutput] = []
    while llm.engine.has_unfinished_requests():
        heard += llm.engine.step()
    assert len(heard[-1].outputs[0].token_ids) == 5


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether work() returned True in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return status == 0
