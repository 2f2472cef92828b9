"""Several answers to one request, in the engine: each is bit for bit what a request with its shown seed gets alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from engine.fakes import POISON, toy_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.engine.async_llm_engine import AsyncLLMEngine
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import CompletionOutput, RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
PARAMS = SamplingParams(n=4, seed=11, max_tokens=12, logprobs=2)


def finish(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """All outputs, by request id."""
    seen: dict[str, list[RequestOutput]] = defaultdict(list)
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(output)
    return seen


@cache
def alone(prompt: tuple[int, ...], params: SamplingParams, seed: int) -> CompletionOutput:
    """The one answer of a request with this seed, in an engine of its own."""
    engine = toy_engine()
    engine.add_request("r", list(prompt), replace(params, n=1, best_of=None, seed=seed, output_kind=FINAL_ONLY))
    return finish(engine)["r"][0].outputs[0]


def summed_up(outputs: list[RequestOutput], kind: RequestOutputKind) -> list[CompletionOutput]:
    """The whole answers, as a reader of every output has them."""
    if kind is not DELTA:
        return outputs[-1].outputs
    parts: dict[int, list[CompletionOutput]] = defaultdict(list)
    for output in outputs:
        for part in output.outputs:
            parts[part.index].append(part)
    return [
        replace(
            parts[index][-1],
            text="".join(part.text for part in parts[index]),
            token_ids=[token_id for part in parts[index] for token_id in part.token_ids],
            logprobs=None
            if parts[index][0].logprobs is None
            else [entry for part in parts[index] for entry in part.logprobs or ()],
        )
        for index in sorted(parts)
    ]


def check_against_singles(prompt: list[int], params: SamplingParams, outputs: list[RequestOutput]) -> None:
    answers = summed_up(outputs, params.output_kind)
    assert [answer.index for answer in answers] == list(range(params.n))
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    for answer in answers:
        assert answer.seed is not None
        assert replace(answer, index=0) == alone(tuple(prompt), replace(params, output_kind=FINAL_ONLY), answer.seed)


# ---- one request


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_each_answer_is_that_of_a_request_with_its_seed(length: int) -> None:
    engine = toy_engine(block_size=4)
    prompt = list(range(65, 65 + length))
    engine.add_request("r", prompt, replace(PARAMS, n=8))
    outputs = finish(engine)["r"]
    check_against_singles(prompt, replace(PARAMS, n=8), outputs)
    answers = outputs[-1].outputs
    assert len({tuple(answer.token_ids) for answer in answers}) == 8, "they differ"
    assert answers[0].seed == 11
    assert outputs[-1].metrics.num_generation_tokens == sum(len(answer.token_ids) for answer in answers)
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks


def test_a_seed_is_drawn_once_for_all_of_them() -> None:
    seen = []
    for seed in (5, 5, 6):
        engine = toy_engine(seed=seed)
        engine.add_request("first", "AB", replace(PARAMS, seed=None))
        engine.add_request("second", "AB", replace(PARAMS, seed=None, n=1))
        outputs = finish(engine)
        check_against_singles([65, 66], PARAMS, outputs["first"])
        seen.append([answer.seed for request_id in ("first", "second") for answer in outputs[request_id][-1].outputs])
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) == 5
    assert all(0 <= shown < 2**53 for shown in seen[0] if shown is not None), "JSON brings it back unchanged"


def test_the_best_are_those_of_the_highest_cumulative_logprob() -> None:
    engine = toy_engine()
    engine.add_request("all", "AB", replace(PARAMS, n=6))
    engine.add_request("best", "AB", replace(PARAMS, n=2, best_of=6))
    engine.add_request("unasked", "AB", replace(PARAMS, n=2, best_of=6, logprobs=None))
    outputs = finish(engine)
    everything = outputs["all"][-1].outputs
    assert all(answer.cumulative_logprob is not None for answer in everything)
    assert "error" in {answer.finish_reason for answer in everything}, "one came upon a NaN, and is no good"
    whole = [answer for answer in everything if answer.finish_reason != "error"]
    ranked = sorted(whole, key=lambda answer: -(answer.cumulative_logprob or 0.0))[:2]
    (best,) = outputs["best"]
    assert best.outputs == [replace(answer, index=rank) for rank, answer in enumerate(ranked)]
    (unasked,) = outputs["unasked"]
    assert unasked.outputs == [replace(answer, logprobs=None, cumulative_logprob=None) for answer in best.outputs]


def test_prompt_logprobs_are_those_of_one_request_and_deltas_have_them_once() -> None:
    engine = toy_engine()
    prompt = list(range(65, 75))
    params = replace(PARAMS, prompt_logprobs=1, output_kind=DELTA)
    engine.add_request("several", prompt, params)
    engine.add_request("one", prompt, replace(params, n=1))
    outputs = finish(engine)
    shown = {name: [output.prompt_logprobs for output in outputs[name] if output.prompt_logprobs] for name in outputs}
    assert len(shown["several"]) == len(shown["one"]) == 1
    assert shown["several"][0] == shown["one"][0]
    assert len(shown["one"][0]) == len(prompt)


# ---- in company, preempted, aborted

KINDS = st.sampled_from(list(RequestOutputKind))
REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(65, 90), min_size=1, max_size=9),
        st.builds(
            SamplingParams,
            n=st.integers(1, 4),
            seed=st.integers(0, 3),
            max_tokens=st.integers(1, 10),
            stop=st.sampled_from([(), ("A", "b", "c", "XY")]),
            include_stop_str_in_output=st.booleans(),
            logprobs=st.sampled_from([None, 1]),
            output_kind=KINDS,
            detokenize=st.just(True),
        ),
    ),
    min_size=1,
    max_size=4,
)


@given(REQUESTS, st.sampled_from(["recompute", "swap"]), st.booleans(), st.data())
@settings(max_examples=120, deadline=None)
def test_company_and_preemption_change_nothing(
    requests: list[tuple[list[int], SamplingParams]], mode: str, overlaps: bool, data: st.DataObject
) -> None:
    engine = toy_engine(num_blocks=40, num_host_blocks=40, max_num_batched_tokens=16, async_scheduling=overlaps)
    for i, (prompt, params) in enumerate(requests):
        engine.add_request(str(i), prompt, params)
    seen: dict[str, list[RequestOutput]] = defaultdict(list)
    while engine.has_unfinished_requests():
        if data.draw(st.integers(0, 2)) == 0:
            engine.scheduler.preempt(data.draw(st.integers(0, len(requests) - 1)), mode)
        for output in engine.step():
            seen[output.request_id].append(output)
        engine.scheduler.check_invariants()
    for i, (prompt, params) in enumerate(requests):
        check_against_singles(prompt, params, seen[str(i)])
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert engine.scheduler.num_free_host_blocks == engine.scheduler.num_host_blocks


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("num_steps", range(8))
def test_an_abort_at_any_step_frees_every_branch_at_once(num_steps: int, overlaps: bool) -> None:
    engine = toy_engine(max_num_batched_tokens=16, async_scheduling=overlaps)
    prompt = list(range(65, 65 + 40))  # computed in three steps
    engine.add_request("r", prompt, replace(PARAMS, n=3, max_tokens=20))
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    output = engine.abort_request("r")
    assert output is not None
    assert (output.finished, len(output.outputs)) == (True, 3)
    assert {answer.finish_reason for answer in output.outputs} <= {"abort", "stop"}
    assert all(len(answer.token_ids) >= len(outputs) > 0 for answer in output.outputs) or not outputs
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert not engine.has_unfinished_requests()
    engine.add_request("next", "AB", replace(PARAMS, max_tokens=2))
    assert finish(engine)["next"][-1].finished


def test_more_answers_than_a_step_has_room_for_are_refused_and_nothing_is_left() -> None:
    engine = toy_engine(max_num_seqs=4)
    with pytest.raises(ValueError, match="n must be at most 4, .* got 5"):
        engine.add_request("r", "AB", replace(PARAMS, n=5))
    assert not engine.has_unfinished_requests()
    engine.add_request("r", "AB", PARAMS)
    assert len(finish(engine)["r"][-1].outputs) == 4


# ---- many readers


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA])
def test_a_reader_who_comes_late_misses_nothing_of_any_branch(kind: RequestOutputKind) -> None:
    async def read() -> list[RequestOutput]:
        toy = toy_engine()
        one_is_read = threading.Event()
        steps = itertools.count()
        toy.on_planned = lambda: None if next(steps) == 0 else assert_set_in_time(one_is_read)
        engine = AsyncLLMEngine.with_engine(toy)
        outputs: list[RequestOutput] = []
        async for output in engine.generate([65, 66], replace(PARAMS, output_kind=kind)):
            outputs.append(output)
            if len(outputs) == 1:
                one_is_read.set()
                await held_up(engine)
        await engine.aclose()
        return outputs

    outputs = asyncio.run(read())
    assert len(outputs) == 2, "the second has all that came meanwhile"
    check_against_singles([65, 66], replace(PARAMS, output_kind=kind), outputs)


def assert_set_in_time(event: threading.Event) -> None:
    assert event.wait(timeout=60)


async def held_up(engine: AsyncLLMEngine) -> None:
    """Until the engine has nothing more to do."""
    inner: Any = engine._thread.engine
    while inner.has_unfinished_requests():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_prompt_that_fails_before_its_samples_have_parted_ends_all_of_them(kind: RequestOutputKind) -> None:
    """In a chunk that is not its last, for its logprobs' sake: there is one sequence yet to say so."""
    engine = toy_engine(max_num_batched_tokens=4)
    params = replace(PARAMS, n=3, stop="^", prompt_logprobs=1, output_kind=kind)
    engine.add_request("r", [65, POISON, *range(66, 74)], params)
    outputs = engine.step()
    assert not engine.has_unfinished_requests() and not engine.scheduler.has_unfinished()
    (output,) = outputs
    assert output.finished
    assert [completion.finish_reason for completion in output.outputs] == ["error"] * 3
