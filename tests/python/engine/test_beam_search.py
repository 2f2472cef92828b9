"""Beam search in the engine: the answers of the slow and obvious search, whatever goes on around it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from engine.fakes import EOS, POISON, VOCAB_SIZE, toy_logits
from engine.plain_answers import cut, eager_engine
from engine.plain_beams import PlainAnswer, plain_beam_search

from fastpaged.engine.async_llm_engine import AsyncLLMEngine
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import CompletionOutput, RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

UNPOISONED = {POISON: -100.0}  # the toy model's NaN is nothing that a beam should come upon
PARAMS = SamplingParams(n=3, use_beam_search=True, max_tokens=8, ignore_eos=True, logit_bias=UNPOISONED)


def toy_logprobs(prompt: list[int], output: list[int], params: SamplingParams) -> npt.NDArray[np.float64]:
    """What is summed: log-softmax of the toy model's logits, then what the request wants changed in it."""
    tokens = prompt + output
    logits = toy_logits(tokens[-1], len(tokens) - 1).astype(np.float64) / (params.temperature or 1.0)
    logprobs: npt.NDArray[np.float64] = logits - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    for token_id, bias in (params.logit_bias or {}).items():
        logprobs[token_id] += bias
    barred = [] if len(output) >= params.min_tokens else end_tokens(params)
    allowed = range(VOCAB_SIZE) if params.allowed_token_ids is None else params.allowed_token_ids
    logprobs[[token_id for token_id in range(VOCAB_SIZE) if token_id in barred or token_id not in allowed]] = -np.inf
    return logprobs


def end_tokens(params: SamplingParams) -> list[int]:
    return [*(params.stop_token_ids or ()), *([] if params.ignore_eos else [EOS])]


def expected(prompt: list[int], params: SamplingParams) -> list[PlainAnswer]:
    answers = plain_beam_search(
        prompt, params, end_tokens(params), lambda prompt, output: toy_logprobs(prompt, output, params)
    )
    return answers[: params.n]


def finish(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    seen: dict[str, list[RequestOutput]] = defaultdict(list)
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(output)
        engine.scheduler.check_invariants()
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    return seen


def some_params(random_: random.Random) -> SamplingParams:
    width = random_.randint(1, 4)
    letters = list(range(65, 91))
    return SamplingParams(
        n=random_.randint(1, width),
        best_of=width,
        use_beam_search=True,
        max_tokens=random_.randint(1, 9),
        temperature=random_.choice([0.0, 1.0, 0.5]),
        length_penalty=random_.choice([0.6, 1.0, 1.4, 0.0, -1.0]),
        early_stopping=random_.choice([False, True, "never"]),
        ignore_eos=random_.random() < 0.3,
        stop_token_ids=random_.sample(range(VOCAB_SIZE), random_.choice([0, 0, 5, 20])),
        stop=[chr(random_.choice(letters)) for _ in range(random_.choice([0, 0, 2]))],
        include_stop_str_in_output=random_.random() < 0.3,
        logit_bias=UNPOISONED | dict.fromkeys(random_.sample(range(5, VOCAB_SIZE), random_.choice([0, 10])), 2.0),
        allowed_token_ids=random_.choice([None, None, sorted({EOS, *random_.sample(range(5, VOCAB_SIZE), 40)})]),
        logprobs=random_.choice([None, 0, 2]),
        output_kind=random_.choice(list(RequestOutputKind)),
    )


def check(answers: list[CompletionOutput], plain: Sequence[PlainAnswer], params: SamplingParams, case: object) -> None:
    assert [answer.token_ids for answer in answers] == [list(beam.output) for beam in plain], case
    assert [answer.index for answer in answers] == list(range(len(plain)))
    for answer, beam in zip(answers, plain, strict=True):
        assert answer.score == pytest.approx(beam.score, abs=1e-4), case
        assert answer.cumulative_logprob == pytest.approx(beam.sum, abs=1e-4), case
        assert isinstance(params.stop, tuple)
        hides_last = beam.reason == "stop" and not params.include_stop_str_in_output
        text = "".join(map(chr, beam.output[:-1] if hides_last else beam.output))
        assert answer.text == cut(text, params.stop, params.include_stop_str_in_output, params.min_tokens), case
        if beam.reason == "string":
            assert (answer.finish_reason, answer.stop_reason in params.stop) == ("stop", True), case
        elif answer.stop_reason is None or isinstance(answer.stop_reason, int):
            assert answer.finish_reason == beam.reason, case
        check_logprobs(answer, params)


def check_logprobs(answer: CompletionOutput, params: SamplingParams) -> None:
    if params.logprobs is None:
        assert answer.logprobs is None
        return
    assert answer.logprobs is not None
    assert [next(iter(entry)) for entry in answer.logprobs] == answer.token_ids
    total = sum(entry[token_id].logprob for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True))
    assert total == pytest.approx(answer.cumulative_logprob, abs=1e-9), "the logprobs are what was summed"
    for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        ranks = sorted(logprob.rank for logprob in entry.values())
        assert ranks == sorted({entry[token_id].rank, *range(1, params.logprobs + 1)})
        assert [entry[i].rank for i in sorted(entry, key=lambda i: -entry[i].logprob)] == ranks


def test_the_answers_are_those_of_the_slow_search() -> None:
    random_ = random.Random(1)
    reasons = set()
    for _ in range(250):
        params = some_params(random_)
        params = replace(params, min_tokens=random_.choice([0, 0, 1, min(3, params.max_tokens or 3)]))
        prompt = [random_.randrange(65, 91) for _ in range(random_.randint(1, 9))]
        engine = eager_engine(block_size=random_.choice([1, 2, 4]), num_blocks=128)
        engine.add_request("r", prompt, params)
        (output,) = finish(engine)["r"]
        assert output.finished
        plain = expected(prompt, params)
        check(output.outputs, plain, params, (prompt, params))
        reasons |= {beam.reason for beam in plain}
    assert reasons == {"stop", "length", "string"}


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_company_and_preemption_change_nothing(mode: str, overlaps: bool) -> None:
    random_ = random.Random(mode)
    num_preempted = 0
    for _ in range(25):
        engine = eager_engine(
            num_blocks=60, num_host_blocks=60, max_num_batched_tokens=16, async_scheduling=overlaps, max_num_seqs=12
        )
        requests = {}
        for i in range(random_.randint(1, 4)):
            prompt = [random_.randrange(65, 91) for _ in range(random_.randint(1, 20))]
            params = some_params(random_) if random_.random() < 0.8 else SamplingParams(n=2, seed=i, max_tokens=9)
            requests[str(i)] = prompt, params
            engine.add_request(str(i), prompt, params)
        seen: dict[str, list[RequestOutput]] = defaultdict(list)
        while engine.has_unfinished_requests():
            if random_.random() < 0.3:
                num_preempted += engine.scheduler.preempt(random_.randrange(len(requests)), mode)
            for output in engine.step():
                seen[output.request_id].append(output)
            engine.scheduler.check_invariants()
        for request_id, (prompt, params) in requests.items():
            if params.use_beam_search:
                (output,) = seen[request_id]
                check(output.outputs, expected(prompt, params), params, (prompt, params))
        assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
        assert engine.scheduler.num_free_host_blocks == engine.scheduler.num_host_blocks
    assert num_preempted > 20


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("num_steps", range(7))
def test_an_abort_at_any_step_shows_the_beams_as_they_stand(num_steps: int, overlaps: bool) -> None:
    engine = eager_engine(max_num_batched_tokens=16, async_scheduling=overlaps)
    prompt = list(range(65, 65 + 20))  # computed in two steps
    engine.add_request("r", prompt, PARAMS)
    assert [output for _ in range(num_steps) for output in engine.step()] == []
    output = engine.abort_request("r")
    assert output is not None
    assert output.finished
    assert {answer.finish_reason for answer in output.outputs} == {"abort"}
    length = max(num_steps - 1, 0)
    if length == 0:
        assert [answer.token_ids for answer in output.outputs] == [[]]
    else:
        plain = expected(prompt, replace(PARAMS, max_tokens=length))
        assert [answer.token_ids for answer in output.outputs] == [list(beam.output) for beam in plain]
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert not engine.scheduler.has_unfinished()


def test_prompt_logprobs_are_those_of_any_other_request() -> None:
    engine = eager_engine()
    prompt = list(range(65, 75))
    engine.add_request("beams", prompt, replace(PARAMS, prompt_logprobs=1))
    engine.add_request("one", prompt, SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=2))
    outputs = finish(engine)
    assert outputs["beams"][-1].prompt_logprobs == outputs["one"][-1].prompt_logprobs
    assert len(outputs["one"][-1].prompt_logprobs or ()) == len(prompt)


def test_beams_at_the_end_of_the_pool_are_answers_as_they_are() -> None:
    engine = eager_engine(num_blocks=4, block_size=4, max_model_len=64)
    engine.add_request("r", [65] * 8, replace(PARAMS, n=2, max_tokens=40))
    (output,) = finish(engine)["r"]
    assert [answer.finish_reason for answer in output.outputs] == ["length", "length"]
    assert all(1 <= len(answer.token_ids) <= 9 for answer in output.outputs)


def test_logits_with_a_nan_fail_the_search_and_nobody_else() -> None:
    engine = eager_engine()
    engine.add_request("bad", [65, POISON], PARAMS)
    engine.add_request("good", [65, 66], PARAMS)
    outputs = finish(engine)
    assert [answer.finish_reason for answer in outputs["bad"][0].outputs] == ["error"]
    check(outputs["good"][0].outputs, expected([65, 66], PARAMS), PARAMS, "good")


def test_a_stop_string_that_ends_the_last_live_beam_ends_the_search() -> None:
    first = expected([65, 66], replace(PARAMS, n=1, max_tokens=1))[0].output[0]
    for overlaps in (False, True):
        engine = eager_engine(async_scheduling=overlaps)
        params = replace(PARAMS, n=1, stop=chr(first))
        engine.add_request("r", [65, 66], params)
        (output,) = finish(engine)["r"]
        (answer,) = output.outputs
        assert (answer.token_ids, answer.finish_reason, answer.stop_reason) == ([first], "stop", chr(first))


@pytest.mark.parametrize("overlaps", [False, True])
def test_beams_that_end_in_one_step_are_all_looked_at_before_the_search_is_over(overlaps: bool) -> None:
    random_ = random.Random(3)
    num_together = 0
    for _ in range(60):
        stop = [chr(letter) for letter in random_.sample(range(65, 91), 6)]
        params = replace(
            PARAMS, n=4, max_tokens=6, early_stopping=True, ignore_eos=False, stop=stop,
            allowed_token_ids=[EOS, *range(65, 91)],
        )  # fmt: skip
        prompt = [random_.randrange(65, 91) for _ in range(4)]
        engine = eager_engine(async_scheduling=overlaps)
        engine.add_request("r", prompt, params)
        (output,) = finish(engine)["r"]
        plain = expected(prompt, params)
        check(output.outputs, plain, params, (prompt, params))
        lengths = [len(beam.output) for beam in plain if beam.reason == "string"]
        num_together += len(lengths) > len(set(lengths))
    assert num_together > 10


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_reader_gets_one_output(kind: RequestOutputKind) -> None:
    async def read() -> list[RequestOutput]:
        engine = AsyncLLMEngine.with_engine(eager_engine())
        outputs = [output async for output in engine.generate([65, 66], replace(PARAMS, output_kind=kind))]
        await engine.aclose()
        return outputs

    (output,) = asyncio.run(read())
    check(output.outputs, expected([65, 66], PARAMS), PARAMS, kind)
