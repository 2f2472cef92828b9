"""Masks, biases and penalties through the whole engine: each does what it says, in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.fakes import EOS, POISON, toy_engine, toy_logits
from exactness import Answer, Request, Variant, by_force, first_difference, pressed_variants, run, run_counted
from sampling.edits_model import Edits

from fastpaged.config import EngineConfig
from fastpaged.llm import LLM
from fastpaged.sampling_params import SamplingParams

TWO, SIX = 2, 60  # a stop token of the requests below, and how long their answers may get
# What SamplingParams is given, beside the same thing as the numpy model has it. Toy tokens are characters.
FIELDS: dict[str, tuple[dict[str, Any], Edits]] = {
    "presence_penalty": ({"presence_penalty": 2.0}, Edits(presence_penalty=2.0)),
    "negative presence_penalty": ({"presence_penalty": -2.0}, Edits(presence_penalty=-2.0)),
    "frequency_penalty": ({"frequency_penalty": 1.5}, Edits(frequency_penalty=1.5)),
    "repetition_penalty": ({"repetition_penalty": 1.75}, Edits(repetition_penalty=1.75)),
    "logit_bias": ({"logit_bias": {65: 7.5, 66: 6, 80: -100}}, Edits(logit_bias=((65, 7.5), (66, 6.0), (80, -100.0)))),
    "allowed_token_ids": ({"allowed_token_ids": range(40, 90, 7)}, Edits(allowed_token_ids=tuple(range(40, 90, 7)))),
    "bad_words": (
        {"bad_words": [chr(token) for token in range(33, 127, 2)]},
        Edits(bad_words=tuple((token,) for token in range(33, 127, 2))),
    ),
    "bad words of two tokens": (
        {"bad_words": [chr(a) + chr(b) for a in (65, 70) for b in range(33, 127)], "logit_bias": {65: 9, 70: 8}},
        Edits(
            bad_words=tuple((a, b) for a in (65, 70) for b in range(33, 127)), logit_bias=((65, 9.0), (70, 8.0))
        ),
    ),
    "min_tokens": (
        {"min_tokens": 9, "logit_bias": {EOS: 100}},
        Edits(min_tokens=9, end_token_ids=(EOS,), logit_bias=((EOS, 100.0),)),
    ),
    "all at once": (
        {
            "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5, "bad_words": ["A", "BC"],
            "logit_bias": {66: 4, EOS: 5}, "allowed_token_ids": [EOS, *range(60, 75)], "min_tokens": 5,
        },
        Edits(
            0.5, 0.25, 1.5, 5, ((66, 4.0), (EOS, 5.0)), (EOS, *range(60, 75)), (EOS,), ((65,), (32, 65), (66, 67)),
        ),
    ),
}  # fmt: skip


def plain_loop(prompt: Sequence[int], max_tokens: int, edits: Edits) -> list[int]:
    """Greedy, on the toy model; what would break it never comes."""
    edits = replace(edits, logit_bias=(*edits.logit_bias, (POISON, -100.0)))
    output: list[int] = []
    while len(output) < max_tokens:
        tokens = [*prompt, *output]
        logits = edits.applied_to(toy_logits(tokens[-1], len(tokens) - 1), prompt, output)
        output.append(int(np.argmax(logits)))
        if output[-1] == EOS:
            break
    return output


def without_poison(params: SamplingParams) -> SamplingParams:
    return replace(params, logit_bias={**(params.logit_bias or {}), POISON: -100})


def toy_answers(engine: Any, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, Any]:
    for name, (prompt, params) in requests.items():
        engine.add_request(name, prompt, params)
    finished = {}
    while engine.has_unfinished_requests():
        finished.update({output.request_id: output.outputs[0] for output in engine.step() if output.finished})
    return finished


@pytest.mark.parametrize("num_blocks", [160, 12], ids=["with room", "with preemption"])
def test_greedy_requests_answer_as_the_plain_loop_does(num_blocks: int) -> None:
    rng = np.random.default_rng(3)
    prompts = {f"{name} {i}": rng.integers(33, 127, rng.integers(1, 9)).tolist() for name in FIELDS for i in range(4)}
    requests = {
        f"{name} {i}": (
            prompts[f"{name} {i}"],
            without_poison(SamplingParams(temperature=0.0, max_tokens=24, **given)),
        )
        for name, (given, _) in FIELDS.items()
        for i in range(4)
    }
    engine = toy_engine(num_blocks=num_blocks)
    answers = toy_answers(engine, requests)
    assert (engine.scheduler.stats.num_preemptions > 0) == (num_blocks == 12)
    for name, (_, edits) in FIELDS.items():
        mine = [f"{name} {i}" for i in range(4)]
        expected = [plain_loop(prompts[request], 24, edits) for request in mine]
        assert [answers[request].token_ids for request in mine] == expected, name
        unedited = [plain_loop(prompts[request], 24, Edits()) for request in mine]
        assert expected != unedited, f"{name} changes nothing here"


def test_a_stop_token_ends_the_answer_under_ignore_eos_too_and_not_before_min_tokens() -> None:
    bias = {EOS: 60, 70: 80}
    stopped = SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=[70], logit_bias=bias)
    later = replace(stopped, min_tokens=3)
    answers = toy_answers(toy_engine(), {"stopped": ([65], stopped), "later": ([65], later)})
    assert (answers["stopped"].token_ids, answers["stopped"].finish_reason) == ([70], "stop")
    assert (answers["later"].token_ids, answers["later"].finish_reason) == ([EOS, EOS, EOS, 70], "stop")


def test_a_request_left_without_a_token_fails_alone() -> None:
    """Two allowed tokens, each of which may follow neither."""
    stuck = SamplingParams(temperature=0.0, allowed_token_ids=[65, 66], bad_words=["AA", "AB", "BA", "BB"])
    other = without_poison(SamplingParams(temperature=0.0, max_tokens=5))
    answers = toy_answers(toy_engine(), {"stuck": ([70], stuck), "other": ([70], other)})
    assert (answers["stuck"].finish_reason, len(answers["stuck"].token_ids)) == ("error", 1)
    assert answers["other"].token_ids == plain_loop([70], 5, Edits())


# ---- the same bits in any company


def request_list(prompts: Sequence[tuple[int, ...]]) -> list[Request]:
    """Every field, greedy and seeded, and all of them at once."""
    fields: list[dict[str, Any]] = [
        {"presence_penalty": 1.25},
        {"frequency_penalty": -0.75},
        {"repetition_penalty": 1.3},
        {"logit_bias": {i: (i % 7) - 3.0 for i in range(0, 300, 2)}},
        {"bad_words": ["the", "ing", "a", "e", "in the"]},
        {"allowed_token_ids": range(5, 300, 3)},
        {"min_tokens": 6, "logit_bias": {TWO: 100}},
        {"stop_token_ids": range(3, 300, 25)},
        {
            "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 0.8, "min_tokens": 4,
            "bad_words": ["of the", "s"], "allowed_token_ids": range(3, 290), "stop_token_ids": [9, 99],
            "logit_bias": {9: 8.0, 40: 2.5},
        },
    ]  # fmt: skip
    requests = []
    for i, given in enumerate(fields):
        common: dict[str, Any] = {"max_tokens": SIX // 3, "logprobs": i % 3}
        requests.append(Request(prompts[2 * i], SamplingParams(temperature=0.0, **common, **given)))
        seeded = SamplingParams(temperature=1.2, seed=i, top_p=0.95, top_k=50, **common, **given)
        requests.append(Request(prompts[2 * i + 1], seeded))
    return requests


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    rng = np.random.default_rng(8)
    return request_list([tuple(rng.integers(3, 300, rng.integers(5, 10)).tolist()) for _ in range(18)])


@pytest.fixture(scope="module")
def base(tiny_llama: Path) -> EngineConfig:
    return EngineConfig(
        model=str(tiny_llama), max_model_len=128, block_size=16, num_blocks=160, max_num_seqs=32,
        max_num_batched_tokens=64, num_threads=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(base: EngineConfig, requests: list[Request]) -> list[Answer]:
    return run(Variant("alone", base, alone=True), requests)


def test_every_field_matters_to_some_request(base: EngineConfig, requests: list[Request], alone: list[Answer]) -> None:
    kept = ("temperature", "seed", "top_p", "top_k", "max_tokens", "logprobs")
    plain = [
        Request(request.prompt, SamplingParams(**{name: getattr(request.params, name) for name in kept}))
        for request in requests
    ]
    answers = run(Variant("plain", base), plain)
    changed = {i // 2 for i in range(len(requests)) if answers[i] != alone[i]}
    assert changed == set(range(len(requests) // 2))


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("chunk", [0, 3])
def test_company_chunks_and_forced_preemption_change_no_bit(
    mode: str, chunk: int, base: EngineConfig, requests: list[Request], alone: list[Answer]
) -> None:
    config = replace(base, long_prefill_token_threshold=chunk, swap_space=0.01)
    variant = by_force(Variant(f"chunks of {chunk}", config, shuffle=chunk, stagger=chunk > 0), mode, seed=chunk)
    outcome = run_counted(variant, requests)
    assert sum(outcome.num_preemptions) > 0
    assert first_difference(alone, outcome.answers) is None


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_pool_with_hardly_room_for_one_changes_no_bit(
    mode: str, base: EngineConfig, requests: list[Request], alone: list[Answer]
) -> None:
    for variant in pressed_variants(base, mode, requests, block_size=4):
        outcome = run_counted(variant, requests)
        assert sum(outcome.num_preemptions) > 0
        assert first_difference(alone, outcome.answers) is None, variant.name


def test_the_rules_hold_in_what_llm_answers(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), max_model_len=128, num_blocks=32) as llm:
        allowed = list(range(40, 80))
        params = SamplingParams(seed=1, max_tokens=SIX, allowed_token_ids=allowed, presence_penalty=2.0)
        assert set(llm.generate("the end", params)[0].outputs[0].token_ids) <= set(allowed)
        words = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
        params = SamplingParams(seed=2, max_tokens=SIX, bad_words=words, ignore_eos=True)
        tokenizer = llm.get_tokenizer()
        barred = {tuple(tokenizer.encode(form + word)) for word in words for form in ("", " ")}
        output = llm.generate("the end", params)[0].outputs[0]
        assert len(output.token_ids) == SIX
        assert not {(token,) for token in output.token_ids} & barred
