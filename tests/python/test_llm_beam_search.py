"""LLM.beam_search on the tiny model: what it takes, and what its answers hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastpaged import (
    LLM,
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
    EngineClosedError,
    InvalidRequestError,
    RequestOutputKind,
    SamplingParams,
)

SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64}
PARAMS = BeamSearchParams(beam_width=3, max_tokens=6, logprobs=1)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), **SMALL) as llm:
        yield llm
        assert not llm.engine.has_unfinished_requests()
        assert llm.engine.scheduler.num_free_blocks == llm.engine.scheduler.num_blocks


def test_answers_come_best_first_with_what_people_read_of_them(llm: LLM) -> None:
    (output,) = llm.beam_search("the cat", PARAMS)
    assert isinstance(output, BeamSearchOutput)
    assert (output.prompt, len(output.sequences)) == ("the cat", 3)
    assert output.prompt_token_ids == llm.get_tokenizer().encode("the cat")
    scores = [beam.score for beam in output.sequences]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(beam.tokens) for beam in output.sequences}) == 3
    for beam in output.sequences:
        assert isinstance(beam, BeamSearchSequence)
        assert beam.tokens == output.prompt_token_ids + beam.output_token_ids
        assert beam.text == "the cat" + beam.output_text
        assert beam.score == pytest.approx(beam.cum_logprob / len(beam.output_token_ids))
        assert (beam.finish_reason in ("stop", "length"), beam.lora_request) == (True, None)
        assert beam.logprobs is not None
        chosen = [entry[i].logprob for i, entry in zip(beam.output_token_ids, beam.logprobs, strict=True)]
        assert sum(chosen) == pytest.approx(beam.cum_logprob)
    assert output.metrics.num_generation_tokens >= 18


def test_a_list_of_prompts_in_any_form_is_answered_in_its_order(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("the cat")
    prompts: list[Any] = ["the cat", ids, {"prompt": "a dog"}, {"prompt": "shown", "prompt_token_ids": ids}]
    outputs = llm.beam_search(prompts, PARAMS)
    assert [output.prompt for output in outputs] == ["the cat", None, "a dog", "shown"]
    alone = [llm.beam_search([prompt], PARAMS)[0] for prompt in prompts]
    assert [output.sequences for output in outputs] == [output.sequences for output in alone]
    assert outputs[1].sequences == outputs[0].sequences, "the text of given ids is made"
    assert outputs[3].sequences[0].text == "shown" + outputs[0].sequences[0].output_text
    assert llm.beam_search([], PARAMS) == []


def test_it_is_what_generate_does_with_use_beam_search(llm: LLM) -> None:
    (output,) = llm.beam_search("the cat", PARAMS)
    params = SamplingParams(n=2, best_of=3, use_beam_search=True, max_tokens=6, temperature=0, logprobs=1)
    for kind in RequestOutputKind:
        (streamed,) = llm.stream("the cat", replace(params, output_kind=kind))
        (generated,) = llm.generate("the cat", replace(params, output_kind=kind))
        for request_output in (streamed, generated):
            shown = [(answer.token_ids, answer.text, answer.score) for answer in request_output.outputs]
            beams = output.sequences[:2]
            assert shown == [(beam.output_token_ids, beam.output_text, beam.score) for beam in beams]
            assert [answer.seed for answer in request_output.outputs] == [None, None]


def test_a_wide_search_finds_what_greedy_decoding_finds_or_better(llm: LLM) -> None:
    greedy = llm.generate("the cat", SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0))
    (answer,) = greedy[0].outputs
    (one,) = llm.beam_search("the cat", BeamSearchParams(1, 6, ignore_eos=True))[0].sequences
    assert one.output_token_ids == answer.token_ids, "one beam is greedy where nothing ends"
    best = llm.beam_search("the cat", BeamSearchParams(8, 6, ignore_eos=True))[0].sequences[0]
    assert answer.cumulative_logprob is not None
    assert best.cum_logprob >= answer.cumulative_logprob - 1e-6


def test_a_stop_string_ends_the_beams_that_it_stands_in(llm: LLM) -> None:
    (output,) = llm.beam_search("the cat", replace(PARAMS, max_tokens=12))
    best = output.sequences[0].output_text
    stop = best[len(best) // 2 :][:2]
    (stopped,) = llm.beam_search("the cat", replace(PARAMS, max_tokens=12, stop=stop))
    ends = [beam for beam in stopped.sequences if beam.stop_reason == stop]
    assert ends
    for beam in ends:
        assert beam.finish_reason == "stop"
        assert stop not in beam.output_text
    assert all(stop not in beam.output_text for beam in stopped.sequences)


def test_without_detokenize_there_are_tokens_alone(llm: LLM) -> None:
    (output,) = llm.beam_search("the cat", replace(PARAMS, detokenize=False))
    (expected,) = llm.beam_search("the cat", PARAMS)
    assert [beam.tokens for beam in output.sequences] == [beam.tokens for beam in expected.sequences]
    assert {(beam.text, beam.output_text) for beam in output.sequences} == {("", "")}
    assert output.prompt == "the cat"


def test_where_fewer_answers_are_possible_than_beams_fewer_come_back(llm: LLM) -> None:
    (output,) = llm.beam_search("the cat", BeamSearchParams(8, 2, allowed_token_ids=[5, 6], ignore_eos=True))
    assert sorted(beam.output_token_ids for beam in output.sequences) == [[5, 5], [5, 6], [6, 5], [6, 6]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"params": SamplingParams(n=2, use_beam_search=True)},
            "params must be a BeamSearchParams, got SamplingParams",
        ),
        ({"prompts": ""}, "prompt must not be empty"),
        ({"prompts": ["a", ""]}, r"prompts\[1\]: prompt must not be empty"),
        ({"concurrency_limit": 4}, "concurrency_limit must be None .*got 4"),
        ({"lora_request": "x"}, "lora_request must be None"),
        ({"use_tqdm": 1}, "use_tqdm must be None, True or False"),
        ({"params": BeamSearchParams(300, 4)}, "n, the beam width, must be at most 256, .* got 300"),
        ({"params": BeamSearchParams(2, 4, stop_token_ids=[10**6])}, r"stop_token_ids\[0\] must be a token id in"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_nothing_runs(llm: LLM, arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"prompts": "a", "params": PARAMS} | arguments
    with pytest.raises(InvalidRequestError, match=message):
        llm.beam_search(given.pop("prompts"), given.pop("params"), **given)
    assert not llm.engine.has_unfinished_requests()


def test_an_interrupted_search_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = llm.engine.worker
    execute, count = worker.execute, 0

    def interrupted(batch: object) -> object:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return execute(batch)

    monkeypatch.setattr(worker, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.beam_search(["the cat", "a dog"], PARAMS)
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.scheduler.num_free_blocks == llm.engine.scheduler.num_blocks


def test_a_closed_llm_searches_no_more(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), **SMALL)
    llm.close()
    with pytest.raises(EngineClosedError):
        llm.beam_search("a", PARAMS)
