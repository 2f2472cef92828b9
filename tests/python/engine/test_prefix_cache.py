"""The prefix cache as requests see it: what is found, what is not, and that answers are the same.

Bit-equality of every kind of hit on the real kernels is in tests/python/test_prefix_exactness.py.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from engine.fakes import EOS, POISON, toy_engine, toy_greedy

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams

BLOCK = 4
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
USABLE = [token for token in range(5, 128) if token not in (EOS, POISON)]


def drain(engine: LLMEngine) -> dict[str, RequestOutput]:
    """The last output of each request. Nothing may be held afterwards."""
    finished = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            engine.scheduler.check_invariants()
            if output.finished:
                finished[output.request_id] = output
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    return finished


def ask(
    engine: LLMEngine, prompt: Sequence[int], params: SamplingParams = GREEDY, salt: str | None = None
) -> RequestOutput:
    """The answer, which must be the plain one's, whatever was found."""
    engine.add_request(
        "r", {"prompt_token_ids": list(prompt), **({} if salt is None else {"cache_salt": salt})}, params
    )
    output = drain(engine)["r"]
    if params.temperature == 0:
        assert output.outputs[0].token_ids == toy_greedy(prompt, params.max_tokens or 0, stops=())
    return output


def clean(seed: int, length: int) -> list[int]:
    """A prompt whose plain answer stays clear of the token after which the toy model fails."""
    rng = random.Random(seed)
    while True:
        prompt = [rng.choice(USABLE) for _ in range(length)]
        if POISON not in toy_greedy(prompt, 8, stops=()):
            return prompt


def spoiled(prompt: Sequence[int], at: int, length: int) -> list[int]:
    """A prompt that is the same up to there, and another from there on."""
    for seed in range(1000):
        tail = clean(seed, length)
        other = [*prompt[:at], *tail]
        if tail[0] != prompt[at] and POISON not in toy_greedy(other, 8, stops=()):
            return other
    raise AssertionError("no such prompt")


# ---- what is found


@pytest.mark.parametrize("length", range(3 * BLOCK + 1))
def test_a_prompt_finds_what_it_shares_with_an_earlier_one_to_the_token(length: int) -> None:
    engine = toy_engine(block_size=BLOCK)
    first = clean(1, 4 * BLOCK)
    assert ask(engine, first).num_cached_tokens == 0
    assert ask(engine, spoiled(first, length, 5)).num_cached_tokens == length


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = toy_engine(block_size=BLOCK)
    first = clean(2, 3 * BLOCK)
    assert [ask(engine, first).num_cached_tokens for _ in range(2)] == [0, 3 * BLOCK - 1]
    assert ask(engine, first[: 2 * BLOCK]).num_cached_tokens == 2 * BLOCK - 1
    assert ask(engine, first[:1]).num_cached_tokens == 0


def test_an_answer_is_found_by_the_next_turn_of_its_conversation() -> None:
    engine = toy_engine(block_size=BLOCK)
    prompt = clean(3, BLOCK)
    answer = ask(engine, prompt, dataclasses.replace(GREEDY, max_tokens=BLOCK + 1)).outputs[0].token_ids
    turn = [*prompt, *answer, 66]
    assert ask(engine, turn).num_cached_tokens == 2 * BLOCK  # the last token of an answer is never computed


def test_requests_that_come_at_once_compute_what_they_share_once() -> None:
    engine = toy_engine(block_size=BLOCK)
    shared = clean(4, 4 * BLOCK)
    for i in range(8):
        engine.add_request(str(i), [*shared, 70 + i, 80], dataclasses.replace(GREEDY, max_tokens=1))
    num_cached = [output.num_cached_tokens for _, output in sorted(drain(engine).items())]
    assert num_cached == [0] + [4 * BLOCK] * 7


def test_tokens_found_are_told_in_every_output_of_a_request() -> None:
    engine = toy_engine(block_size=BLOCK)
    prompt = clean(5, 2 * BLOCK + 1)
    ask(engine, prompt)
    engine.add_request("again", prompt, GREEDY)
    seen = []
    while engine.has_unfinished_requests():
        seen += [output.num_cached_tokens for output in engine.step()]
    assert seen == [2 * BLOCK] * 3


# ---- what is not


def test_another_salt_finds_nothing_and_the_same_one_does() -> None:
    engine = toy_engine(block_size=BLOCK)
    prompt = clean(6, 3 * BLOCK)
    found = [ask(engine, prompt, salt=salt).num_cached_tokens for salt in (None, "a", "b", "ab", "A", "a\0", "a ")]
    assert found == [0] * 7
    found = [ask(engine, prompt, salt=salt).num_cached_tokens for salt in ("a\0", "b", None, "a", "ab")]
    assert found == [3 * BLOCK - 1] * 5


def test_the_same_block_after_another_prefix_is_not_found() -> None:
    engine = toy_engine(block_size=BLOCK)
    one, other, last = clean(7, BLOCK), clean(8, BLOCK), clean(9, BLOCK)
    assert one[0] != other[0]
    ask(engine, [*one, *last, 70])
    assert ask(engine, [*other, *last, 70]).num_cached_tokens == 0
    assert ask(engine, [*last, *one, 70]).num_cached_tokens == 0


def test_a_request_that_skips_the_cache_finds_nothing_and_is_found() -> None:
    engine = toy_engine(block_size=BLOCK)
    prompt = clean(10, 2 * BLOCK)
    skipping = dataclasses.replace(GREEDY, skip_reading_prefix_cache=True)
    assert [ask(engine, prompt, skipping).num_cached_tokens for _ in range(3)] == [0, 0, 0]
    assert ask(engine, prompt).num_cached_tokens == 2 * BLOCK - 1


def test_prompts_whose_logprobs_are_wanted_are_computed_and_scored_whole() -> None:
    engine = toy_engine(block_size=BLOCK)
    prompt = clean(11, 3 * BLOCK)
    scored = dataclasses.replace(GREEDY, prompt_logprobs=2)
    cold = ask(engine, prompt, scored)
    ask(engine, prompt)
    warm = ask(engine, prompt, scored)
    assert warm.num_cached_tokens == 0
    assert warm.prompt_logprobs is not None
    assert list(warm.prompt_logprobs) == list(cold.prompt_logprobs or ())
    assert len(warm.prompt_logprobs) == len(prompt)


def test_without_the_cache_nothing_is_found() -> None:
    engine = toy_engine(block_size=BLOCK, enable_prefix_caching=False)
    prompt = clean(12, 3 * BLOCK)
    assert [ask(engine, prompt).num_cached_tokens for _ in range(2)] == [0, 0]
    assert len(engine.scheduler.cached_free_blocks()) == 0


def test_what_is_not_wanted_for_longest_is_evicted_first() -> None:
    engine = toy_engine(block_size=BLOCK, num_blocks=8)
    old, new = clean(13, 2 * BLOCK), clean(14, 2 * BLOCK)
    once = dataclasses.replace(GREEDY, max_tokens=1)
    for prompt in (old, new, old):  # 4 of 8 blocks cached, those of `new` longer ago
        ask(engine, prompt, once)
    ask(engine, clean(15, 6 * BLOCK), once)  # takes the 4 others and 2 of them
    assert ask(engine, old[:-1], once).num_cached_tokens == 2 * BLOCK - 2
    assert ask(engine, new, once).num_cached_tokens == 0


# ---- forgetting


def test_after_a_reset_nothing_is_found_and_requests_in_flight_go_on() -> None:
    engine = toy_engine(block_size=BLOCK)
    prompt, longer = clean(16, 2 * BLOCK), dataclasses.replace(GREEDY, max_tokens=6)
    ask(engine, prompt)
    engine.add_request("running", prompt, longer)
    engine.step()
    assert engine.reset_prefix_cache() is True
    engine.scheduler.check_invariants()
    assert len(engine.scheduler.cached_free_blocks()) == 0
    engine.add_request("later", prompt, GREEDY)
    finished = drain(engine)
    assert finished["running"].outputs[0].token_ids == toy_greedy(prompt, 6, stops=())
    assert (finished["running"].num_cached_tokens, finished["later"].num_cached_tokens) == (2 * BLOCK - 1, 0)
    assert ask(engine, prompt).num_cached_tokens == 2 * BLOCK - 1


@pytest.mark.parametrize("seed", range(4))
def test_with_steps_that_overlap_answers_and_hits_are_as_without(seed: int) -> None:
    rng = random.Random(seed)
    stems = [clean(20 + seed, 2 * BLOCK), clean(30 + seed, 3 * BLOCK)]
    prompts = [
        [*rng.choice(stems)[: rng.randint(1, 12)], *clean(rng.randrange(99), rng.randint(1, 6))] for _ in range(20)
    ]
    prompts = [prompt for prompt in prompts if POISON not in toy_greedy(prompt, 8, stops=())]
    engines = [toy_engine(block_size=BLOCK, num_blocks=16, async_scheduling=overlaps) for overlaps in (False, True)]
    for i, prompt in enumerate(prompts):
        for engine in engines:
            if i % 5 == 4:
                engine.reset_prefix_cache()
            engine.add_request(str(i), prompt, GREEDY)
            engine.step()
    for engine in engines:
        for request_id, output in drain(engine).items():
            assert output.outputs[0].token_ids == toy_greedy(prompts[int(request_id)], 3, stops=())
