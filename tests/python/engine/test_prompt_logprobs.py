"""Logprobs of prompts: those of the raw logits, always as many as the prompt has tokens, however it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.fakes import EOS, POISON, VOCAB_SIZE, toy_engine, toy_logits
from exactness import Answer, Request, Variant, answer, by_force, first_difference, run
from hypothesis import given, settings
from hypothesis import strategies as st
from models.plain_llama import plain_logits
from sampling.sampler_model import log_softmax, order_of
from tiny_model import tiny_llama_config, tiny_weights, write_tiny_llama

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.merge_outputs import merge_deltas
from fastpaged.outputs import Logprob, RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
KINDS = list(RequestOutputKind)
PromptLogprobs = Sequence[dict[int, Logprob] | None]

# ---- on the toy model


def check_toy(prompt: list[int], k: int, got: PromptLogprobs | None) -> None:
    """What numpy says of the toy model's logits."""
    assert got is not None
    assert len(got) == len(prompt)
    assert got[0] is None
    for position, entry in enumerate(got[1:], 1):
        assert entry is not None
        logits = toy_logits(prompt[position - 1], position - 1)
        order, logprobs = order_of(logits), log_softmax(logits)
        expected = dict.fromkeys([prompt[position], *map(int, order[:k])])
        assert list(entry) == list(expected)
        for token_id, logprob in entry.items():
            assert logprob.logprob == pytest.approx(logprobs[token_id], abs=1e-5)
            assert order[logprob.rank - 1] == token_id
            assert logprob.decoded_token == chr(token_id)


def finish(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
        engine.scheduler.check_invariants()
    return outputs


@pytest.mark.parametrize(("asked", "k"), [(0, 0), (3, 3), (True, 1), (-1, VOCAB_SIZE)])
def test_each_token_of_the_prompt_has_its_own_logprob_and_the_alternatives(asked: int, k: int) -> None:
    engine = toy_engine(max_logprobs=-1)
    prompt = [65, 70, 65, EOS, 99, 99]
    engine.add_request("r", prompt, replace(GREEDY, prompt_logprobs=asked))
    for output in finish(engine):
        check_toy(prompt, k, output.prompt_logprobs)
        assert output.outputs[0].logprobs is None


def test_a_prompt_of_one_token_has_no_logprob_to_give() -> None:
    engine = toy_engine()
    engine.add_request("r", [65], replace(GREEDY, prompt_logprobs=2))
    assert [output.prompt_logprobs for output in finish(engine)] == [[None]] * 4


def test_who_does_not_ask_gets_none() -> None:
    engine = toy_engine()
    engine.add_request("r", [65, 66], replace(GREEDY, logprobs=2))
    assert {output.prompt_logprobs for output in finish(engine)} == {None}


def test_without_detokenize_the_entries_have_no_text() -> None:
    engine = toy_engine()
    engine.add_request("r", [65, 66], replace(GREEDY, prompt_logprobs=2, detokenize=False))
    (*_, last) = finish(engine)
    assert last.prompt_logprobs is not None
    assert last.prompt_logprobs[1] is not None
    assert {entry.decoded_token for entry in last.prompt_logprobs[1].values()} == {None}


def test_deltas_bring_them_once_with_the_first_token_and_other_kinds_always() -> None:
    for kind, expected in ((KINDS[0], [6] * 4), (KINDS[1], [6, None, None, None]), (KINDS[2], [6])):
        engine = toy_engine(max_num_seqs=1, max_num_batched_tokens=2)
        engine.add_request("r", list(range(65, 71)), replace(GREEDY, prompt_logprobs=1, output_kind=kind))
        outputs = finish(engine)
        lengths = [None if output.prompt_logprobs is None else len(output.prompt_logprobs) for output in outputs]
        assert lengths == expected, kind
        assert outputs[0].outputs[0].token_ids, "no output comes before a token"


def test_deltas_that_are_read_late_bring_them_all_the_same() -> None:
    engine = toy_engine()
    prompt = [65, 70, 99]
    engine.add_request("r", prompt, replace(GREEDY, prompt_logprobs=2, output_kind=RequestOutputKind.DELTA))
    outputs = finish(engine)
    assert len(outputs) == 4
    check_toy(prompt, 2, merge_deltas(outputs).prompt_logprobs)
    assert merge_deltas(outputs[1:]).prompt_logprobs is None


def test_a_nan_in_the_prompt_fails_that_request_alone() -> None:
    engine = toy_engine()
    params = replace(GREEDY, prompt_logprobs=1)
    engine.add_request("bad", [65, POISON, 66], params)
    engine.add_request("spared", [65, POISON, 66], GREEDY)
    engine.add_request("good", [65, 66], params)
    last = {output.request_id: output for output in finish(engine)}
    assert {name: output.outputs[0].finish_reason for name, output in last.items()} == {
        "bad": "error", "spared": "length", "good": "length",
    }  # fmt: skip
    assert (last["bad"].prompt_logprobs, last["bad"].outputs[0].token_ids) == (None, [])
    check_toy([65, 66], 1, last["good"].prompt_logprobs)


def test_a_nan_after_the_prompt_leaves_them_complete() -> None:
    engine = toy_engine()
    engine.add_request("r", [65, 66, POISON], replace(GREEDY, prompt_logprobs=1))
    (output,) = finish(engine)
    assert output.outputs[0].finish_reason == "error"
    check_toy([65, 66, POISON], 1, output.prompt_logprobs)


def test_a_text_that_cannot_be_made_fails_who_reads_it_alone() -> None:
    engine = toy_engine()
    broken = engine.tokenizer.token_text

    def token_text(token_id: int) -> str:
        if token_id == 90:
            raise ZeroDivisionError("no text")
        return str(broken(token_id))

    engine.tokenizer.token_text = token_text  # type: ignore[method-assign]
    engine.add_request("bad", [65, 90], replace(GREEDY, prompt_logprobs=0))
    engine.add_request("good", [65, 66], replace(GREEDY, prompt_logprobs=0))
    last = {output.request_id: output for output in finish(engine)}
    assert {output.outputs[0].finish_reason for output in last.values()} == {"length"}
    assert last["bad"].prompt_logprobs is not None
    with pytest.raises(ZeroDivisionError, match="no text"):
        last["bad"].prompt_logprobs[1]
    check_toy([65, 66], 0, last["good"].prompt_logprobs)


def test_an_abort_within_the_prompt_shows_none_and_one_after_it_all() -> None:
    prompt = list(range(65, 75))
    for num_steps, complete in ((0, False), (2, False), (3, True), (4, True)):
        for kind in KINDS:
            engine = toy_engine(max_num_batched_tokens=4)
            engine.add_request("r", prompt, replace(GREEDY, prompt_logprobs=2, output_kind=kind))
            shown = [output.prompt_logprobs for _ in range(num_steps) for output in engine.step()]
            aborted = engine.abort_request("r")
            assert aborted is not None
            shown.append(aborted.prompt_logprobs)
            if complete:
                check_toy(prompt, 2, shown[0])
            else:
                assert shown == [None]


@given(
    requests=st.lists(
        st.tuples(
            st.lists(st.integers(5, 127), min_size=1, max_size=20),
            st.none() | st.integers(0, 6),
            st.sampled_from(KINDS),
            st.booleans(),  # seeded, with penalties
        ),
        min_size=1,
        max_size=6,
    ),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(1, 24),
    num_blocks=st.integers(8, 24),
    num_host_blocks=st.integers(0, 12),
    mode=st.sampled_from(["recompute", "swap"]),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_they_are_right_and_whole_in_any_company_through_preemption_and_aborts(
    requests: list[tuple[list[int], int | None, RequestOutputKind, bool]],
    max_num_seqs: int,
    budget: int,
    num_blocks: int,
    num_host_blocks: int,
    mode: str,
    data: st.DataObject,
) -> None:
    engine = toy_engine(
        num_blocks=num_blocks, num_host_blocks=num_host_blocks, preemption_mode=mode, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget, max_model_len=30,
    )  # fmt: skip
    for i, (prompt, k, kind, busy) in enumerate(requests):
        params = replace(GREEDY, prompt_logprobs=k, output_kind=kind, max_tokens=5)
        if busy:
            params = replace(params, temperature=1.0, seed=i, presence_penalty=1.0, repetition_penalty=1.5, min_p=0.1)
        engine.add_request(str(i), prompt, params)
    shown: dict[str, list[PromptLogprobs | None]] = {str(i): [] for i in range(len(requests))}
    unaborted = set(shown)
    while engine.has_unfinished_requests():
        wish = data.draw(st.integers(0, 9))
        i = data.draw(st.integers(0, len(requests) - 1))
        if wish == 0:
            aborted = engine.abort_request(str(i))
            if aborted is not None:
                unaborted.discard(str(i))
                shown[str(i)].append(aborted.prompt_logprobs)
        elif wish <= 2:
            engine.scheduler.preempt(i, mode)
        for output in engine.step():
            shown[output.request_id].append(output.prompt_logprobs)
        engine.scheduler.check_invariants()
    for i, (prompt, k, kind, _) in enumerate(requests):
        given_here = [entries for entries in shown[str(i)] if entries is not None]
        if k is None:
            assert given_here == []
            continue
        assert given_here or str(i) not in unaborted
        for entries in given_here:
            check_toy(prompt, k, entries)
        if str(i) in unaborted:
            assert len(given_here) == (len(shown[str(i)]) if kind is RequestOutputKind.CUMULATIVE else 1)


@pytest.mark.parametrize(("max_num_seqs", "budget", "most"), [(1, 300, 64), (4, 48, 48), (100, 300, 66)])
def test_a_step_has_no_more_rows_of_logits_than_the_model_is_built_for(
    max_num_seqs: int, budget: int, most: int
) -> None:
    engine = toy_engine(num_blocks=400, max_model_len=400, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
    num_rows: list[int] = []
    execute = engine.worker.execute

    def counted(batch: _core.Batch) -> _core.SamplerOutput:
        num_rows.append(len(batch.sample_rows))
        return execute(batch)

    engine.worker.execute = counted  # type: ignore[method-assign]
    rng = np.random.default_rng(1)
    prompts = [[int(token) for token in rng.integers(5, 128, 300)] for _ in range(3)]
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, replace(GREEDY, prompt_logprobs=2 if i < 2 else None))
    last = {output.request_id: output for output in finish(engine)}
    for i in range(2):
        check_toy(prompts[i], 2, last[str(i)].prompt_logprobs)
    assert max(num_rows) == most <= min(engine.config.max_num_rows, budget)
    assert sum(num_rows) == 2 * 299 + 3 * 4, "each position once"


def test_a_short_request_has_its_token_a_step_after_it_came_beside_a_long_prompt_with_logprobs() -> None:
    engine = toy_engine(num_blocks=400, max_model_len=400, max_num_batched_tokens=100)
    engine.add_request("long", [5 + i % 100 for i in range(390)], replace(GREEDY, prompt_logprobs=0))
    engine.step()
    engine.add_request("short", [5, 6, 7], GREEDY)
    assert [(output.request_id, len(output.outputs[0].token_ids)) for output in engine.step()] == [("short", 1)]


# ---- on the tiny Llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


def tiny_engine_config(model: Path, **changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "isa": _core.default_isa(), "max_model_len": 300, "block_size": 16, "num_blocks": 200, "num_threads": 2,
        "max_logprobs": -1,
    }  # fmt: skip
    return EngineConfig(model=str(model), **(values | changes))


def scored_requests() -> list[Request]:
    """With and without, greedy and seeded, with penalties and without."""
    rng = np.random.default_rng(17)
    made = []
    for i in range(12):
        prompt = tuple(int(token) for token in rng.integers(0, 300, (1, 2, 7, 33, 64, 65, 150, 200)[i % 8]))
        params = replace(GREEDY, prompt_logprobs=(5, None, 0)[i % 3], logprobs=(2, None)[i % 2])
        if i % 4 == 3:
            params = replace(params, temperature=0.9, seed=i, top_p=0.9, frequency_penalty=1.5, repetition_penalty=1.2)
        made.append(Request(prompt, params))
    return made


@pytest.fixture(scope="module")
def scored_alone(model: Path) -> list[Answer]:
    """One at a time, each prompt in one step."""
    config = tiny_engine_config(model, max_num_seqs=256)
    return run(Variant("alone, whole", config, alone=True), scored_requests())


MIXES: dict[str, dict[str, Any]] = {
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "chunks of 7": {"long_prefill_token_threshold": 7},
    "chunks of 64": {"long_prefill_token_threshold": 64},
    "whole": {"max_num_seqs": 512},
    "one at a time": {"max_num_seqs": 1},
    "two at a time, blocks of 1": {"max_num_seqs": 2, "block_size": 1, "num_blocks": 3200},
    "budget of 19, blocks of 5": {"max_num_batched_tokens": 19, "block_size": 5, "num_blocks": 600},
    "another seed": {"seed": 5},
}


@pytest.mark.parametrize("mix", MIXES)
def test_no_mix_changes_a_bit_of_them(mix: str, model: Path, scored_alone: list[Answer]) -> None:
    config = tiny_engine_config(model, **MIXES[mix])
    assert first_difference(scored_alone, run(Variant(mix, config, poison=True), scored_requests())) is None
    for mode in ("swap", "recompute"):
        variant = by_force(Variant(mix, config), mode, seed=4)
        assert first_difference(scored_alone, run(variant, scored_requests())) is None, mode


def check_reference(tokens: list[int], entries: list[dict[int, Logprob]]) -> None:
    """Of each token but the first."""
    logits = plain_logits(tiny_llama_config(), tiny_weights(seed=3), tokens)
    assert len(entries) == len(tokens) - 1
    for token_id, entry, row in zip(tokens[1:], entries, logits, strict=False):
        assert next(iter(entry)) == token_id
        expected = log_softmax(row)
        for other, logprob in entry.items():
            assert logprob.logprob == pytest.approx(expected[other], abs=1e-3)
            certainly_better = int((expected > expected[other] + 2e-3).sum())
            perhaps_better = int((expected > expected[other] - 2e-3).sum())
            assert certainly_better < logprob.rank <= perhaps_better


@pytest.mark.parametrize("mix", MIXES)
def test_in_every_mix_they_are_those_of_a_plain_float32_forward(mix: str, model: Path) -> None:
    """Of prompts and of answers, chosen greedily or by a seed."""
    engine = LLMEngine(tiny_engine_config(model, dtype="float32", **MIXES[mix]))
    for i, request in enumerate(scored_requests()):
        params = replace(
            request.params, frequency_penalty=0.0, repetition_penalty=1.0, logprobs=i % 3, prompt_logprobs=i % 4
        )
        engine.add_request(str(i), list(request.prompt), params)
    num_compared = 0
    for output in finish(engine):
        if output.finished and output.prompt_logprobs is not None:
            answers = output.outputs[0].logprobs
            assert answers is not None
            entries = [*(entry for entry in output.prompt_logprobs if entry is not None), *answers]
            check_reference(output.prompt_token_ids + output.outputs[0].token_ids, entries)
            num_compared += len(entries)
    engine.close()
    assert num_compared > 500


def test_they_are_close_to_those_of_a_plain_float32_forward_in_bfloat16_too(model: Path) -> None:
    """With the whole vocabulary, so that all of it is compared."""
    rng = np.random.default_rng(23)
    prompt = [int(token) for token in rng.integers(0, 300, 90)]
    engine = LLMEngine(tiny_engine_config(model, max_num_seqs=2, long_prefill_token_threshold=7))
    params = SamplingParams(
        temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, logprobs=-1, prompt_logprobs=-1, logit_bias={7: 3.0}
    )
    engine.add_request("r", prompt, params)
    engine.add_request("neighbour", prompt[5:], replace(params, prompt_logprobs=None, logprobs=None))
    output = {output.request_id: output for output in finish(engine)}["r"]
    engine.close()
    completion = output.outputs[0]
    assert output.prompt_logprobs is not None
    assert completion.logprobs is not None
    entries = [*(entry for entry in output.prompt_logprobs if entry is not None), *completion.logprobs]
    tokens = prompt + completion.token_ids
    logits = plain_logits(tiny_llama_config(), tiny_weights(seed=3), tokens)
    assert len(entries) == len(tokens) - 1
    got = np.array([[entry[token].logprob for token in range(300)] for entry in entries])
    expected = np.array([log_softmax(row) for row in logits[:-1]])
    # The tiny model's activations are bfloat16: its logits are off by about 1 % of their deviation.
    assert np.sqrt(np.mean((got - expected) ** 2)) < 0.015 * np.sqrt(np.mean(logits**2))
    for token_id, entry, row in zip(tokens[1:], entries, got, strict=True):
        order = order_of(row.astype(np.float32))
        assert next(iter(entry)) == token_id
        assert sorted(entry) == list(range(300))
        assert all(order[logprob.rank - 1] == i for i, logprob in entry.items())


def test_an_answer_is_scored_as_a_prompt_to_the_bit(model: Path) -> None:
    """What a token's logprob is does not depend on who chose it."""
    prompt = (5, 6, 7, 8)
    asked = replace(GREEDY, max_tokens=40, logprobs=3, prompt_logprobs=3)
    config = tiny_engine_config(model, max_num_seqs=1)
    (((token_ids, of_answer, *_),), of_prompt) = run(Variant("answer", config), [Request(prompt, asked)])[0]
    (_, of_both) = run(Variant("prompt", config), [Request(prompt + token_ids, replace(asked, max_tokens=1))])[0]
    assert of_both == of_prompt + of_answer


def test_the_shape_of_an_answer_is_checked_by_the_matrix_too(model: Path) -> None:
    """The comparison above is not of nothing."""
    engine = LLMEngine(tiny_engine_config(model))
    engine.add_request("r", [1, 2, 3], replace(GREEDY, prompt_logprobs=1))
    (*_, output) = finish(engine)
    engine.close()
    assert [len(position) for position in answer(output)[1]] in ([1, 1], [1, 2], [2, 1], [2, 2])
