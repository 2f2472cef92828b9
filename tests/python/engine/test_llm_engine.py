"""LLMEngine with the real scheduler and sampler around a toy model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from engine.fakes import EOS, POISON, ToyWorker, toy_engine, toy_greedy, toy_logits
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.errors import EngineClosedError, InvalidRequestError
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8)
MAX_STEPS = 2000


def drain(engine: LLMEngine) -> dict[str, RequestOutput]:
    """Steps until nothing is left; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    for _ in range(MAX_STEPS):
        if not engine.has_unfinished_requests():
            return last
        for output in engine.step():
            last[output.request_id] = output
        engine.scheduler.check_invariants()
    raise AssertionError(f"unfinished after {MAX_STEPS} steps")


def answer(prompt: Any, params: SamplingParams = GREEDY, **engine_args: Any) -> RequestOutput:
    engine = toy_engine(**engine_args)
    engine.add_request("r", prompt, params)
    return drain(engine)["r"]


def assert_nothing_is_held(engine: LLMEngine) -> None:
    assert not engine.has_unfinished_requests()
    assert not engine.scheduler.has_unfinished()
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert engine.scheduler.num_free_host_blocks == engine.scheduler.num_host_blocks


# ---- what comes out


@given(prompt=st.lists(st.integers(5, 127), min_size=1, max_size=40), max_tokens=st.integers(1, 24))
@settings(deadline=None)
def test_a_greedy_answer_is_the_plain_loops(prompt: list[int], max_tokens: int) -> None:
    expected = toy_greedy(prompt, max_tokens)
    output = answer(prompt, SamplingParams(temperature=0, max_tokens=max_tokens))
    if POISON in expected:
        expected = expected[: expected.index(POISON) + 1]
    completion = output.outputs[0]
    assert completion.token_ids == expected
    shown = expected[:-1] if expected[-1] == EOS else expected
    assert completion.text == "".join(map(chr, shown))


def test_an_end_token_stops_and_is_in_the_ids_but_not_in_the_text() -> None:
    prompt = next([first, second] for first in range(5, 128) for second in range(5, 128)
                  if EOS in toy_greedy([first, second], 8) and len(toy_greedy([first, second], 8)) > 1)  # fmt: skip
    completion = answer(prompt).outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert completion.token_ids[-1] == EOS
    assert completion.text == "".join(map(chr, completion.token_ids[:-1]))


def test_max_tokens_ends_with_length() -> None:
    completion = answer([65], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)).outputs[0]
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 3)


def test_max_tokens_beyond_the_context_is_cut_to_it() -> None:
    params = SamplingParams(temperature=0, max_tokens=999, ignore_eos=True)
    completion = answer([65] * 10, params, max_model_len=16).outputs[0]
    assert completion.finish_reason == "length"
    assert completion.token_ids == toy_greedy([65] * 10, 6, stops=())


def test_a_request_that_outgrows_the_pool_ends_with_length() -> None:
    completion = answer(
        [65] * 4, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True), num_blocks=2
    ).outputs[0]
    assert completion.finish_reason == "length"
    assert completion.token_ids == toy_greedy([65] * 4, 5, stops=())  # 8 slots, and one token sampled from the last


def test_every_step_shows_the_request_as_it_stands() -> None:
    engine = toy_engine()
    engine.add_request("r", "AB", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    seen = [output for _ in range(4) for output in engine.step()]
    assert [output.finished for output in seen] == [False, False, False, True]
    assert [len(output.outputs[0].token_ids) for output in seen] == [1, 2, 3, 4]
    assert [len(output.outputs[0].text) for output in seen] == [0, 1, 2, 4]  # the toy stream holds one back
    assert {(output.prompt, tuple(output.prompt_token_ids)) for output in seen} == {("AB", (65, 66))}


def test_final_only_reports_once() -> None:
    engine = toy_engine()
    engine.add_request("r", "AB", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), final_only=True)
    seen = [output for _ in range(4) for output in engine.step()]
    assert [(output.finished, len(output.outputs[0].token_ids)) for output in seen] == [(True, 4)]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    params = SamplingParams(temperature=0.7, top_k=20, seed=9, max_tokens=5, ignore_eos=True, logprobs=3)
    completion = answer([65, 66], params).outputs[0]
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids)
    tokens = [65, 66]
    for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        logits = toy_logits(tokens[-1], len(tokens) - 1).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-expected, kind="stable")
        assert set(entry) == {token_id, *best[:3].tolist()}
        assert next(iter(entry)) == token_id
        for other, logprob in entry.items():
            assert logprob.logprob == pytest.approx(expected[other], abs=1e-4)
            assert logprob.rank == best.tolist().index(other) + 1
            assert logprob.decoded_token == chr(other)
        tokens.append(token_id)
    total = sum(entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total)


def test_logprobs_zero_is_the_sampled_token_alone_and_none_is_nothing() -> None:
    counted = answer("A", SamplingParams(temperature=0, max_tokens=2, logprobs=0, ignore_eos=True)).outputs[0]
    assert counted.logprobs is not None
    assert [list(entry) for entry in counted.logprobs] == [[token] for token in counted.token_ids]
    plain = answer("A", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)).outputs[0]
    assert (plain.logprobs, plain.cumulative_logprob) == (None, None)


def test_metrics_count_tokens_and_order_the_times() -> None:
    metrics = answer("AB", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)).metrics
    assert metrics.num_generation_tokens == 4
    assert metrics.num_preemptions == 0
    times = (metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts)
    assert all(time is not None for time in times)
    assert list(times) == sorted(times)  # type: ignore[type-var]
    assert metrics.first_token_ts is not None
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts


def test_a_chunked_prompt_shows_nothing_before_its_first_token() -> None:
    engine = toy_engine(max_num_batched_tokens=4)
    engine.add_request("r", [65] * 10, GREEDY)
    assert [len(engine.step()) for _ in range(3)] == [0, 0, 1]


# ---- company


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(5, 127), min_size=1, max_size=20),
        st.sampled_from([None, 1, 2, 3]),  # seed; None is greedy
        st.integers(1, 12),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
)


def make_params(seed: int | None, max_tokens: int, logprobs: int) -> SamplingParams:
    temperature = 0.0 if seed is None else 1.0
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, logprobs=logprobs, ignore_eos=True)


@given(
    requests=REQUESTS,
    num_blocks=st.integers(8, 20),
    num_host_blocks=st.integers(0, 12),
    mode=st.sampled_from(["auto", "recompute", "swap", "by_branches"]),
    budget=st.integers(1, 40),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_company_a_tiny_pool_and_aborts_change_no_answer(
    requests: list[tuple[list[int], int | None, int, int]],
    num_blocks: int,
    num_host_blocks: int,
    mode: str,
    budget: int,
    data: st.DataObject,
) -> None:
    engine = toy_engine(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        preemption_mode=mode,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
    )
    expected = {}
    for i, (prompt, seed, max_tokens, logprobs) in enumerate(requests):
        params = make_params(seed, max_tokens, logprobs)
        expected[str(i)] = answer(prompt, params).outputs[0]
        engine.add_request(str(i), prompt, params)
    last: dict[str, RequestOutput] = {}
    aborted: set[str] = set()
    for _ in range(MAX_STEPS):
        if not engine.has_unfinished_requests():
            break
        if data.draw(st.integers(0, 9)) == 0:
            victim = data.draw(st.sampled_from(sorted(expected)))
            if (output := engine.abort_request(victim)) is not None:
                aborted.add(victim)
                assert output.outputs[0].token_ids == expected[victim].token_ids[: len(output.outputs[0].token_ids)]
        for output in engine.step():
            assert output.request_id not in aborted
            last[output.request_id] = output
        engine.scheduler.check_invariants()
    assert_nothing_is_held(engine)
    for request_id, completion in expected.items():
        if request_id not in aborted:
            assert last[request_id].outputs[0] == completion


def test_preemptions_are_counted() -> None:
    engine = toy_engine(num_blocks=6, block_size=2)
    for i in range(3):
        engine.add_request(str(i), [65 + i] * 3, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    outputs = drain(engine)
    assert sum(output.metrics.num_preemptions for output in outputs.values()) > 0
    assert outputs["0"].metrics.num_preemptions == 0  # the oldest is never the victim


def test_a_request_whose_logits_are_nan_fails_alone() -> None:
    engine = toy_engine()
    engine.add_request("bad", [65, POISON], GREEDY)
    engine.add_request("good", [65, 66], GREEDY)
    outputs = drain(engine)
    assert (outputs["bad"].outputs[0].finish_reason, outputs["bad"].outputs[0].token_ids) == ("error", [])
    assert outputs["good"].outputs[0] == answer([65, 66]).outputs[0]
    assert_nothing_is_held(engine)


def test_a_request_whose_text_fails_fails_alone() -> None:
    engine = toy_engine()
    engine.add_request("bad", [65, 66], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    engine.add_request("good", [70, 71], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    unlucky = toy_greedy([65, 66], 8, stops=())[2]
    assert unlucky not in toy_greedy([70, 71], 8, stops=())
    engine.tokenizer.fails_on = unlucky  # type: ignore[attr-defined]
    outputs = drain(engine)
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert outputs["good"].outputs[0].finish_reason == "length"
    assert outputs["good"].outputs[0].token_ids == toy_greedy([70, 71], 8, stops=())
    assert_nothing_is_held(engine)


# ---- seeds


def unseeded(engine: LLMEngine, request_id: str = "r") -> tuple[int | None, list[int]]:
    engine.add_request(request_id, "AB", SamplingParams(max_tokens=6, ignore_eos=True))
    completion = drain(engine)[request_id].outputs[0]
    return completion.seed, completion.token_ids


def test_a_drawn_seed_repeats_the_answer() -> None:
    seed, token_ids = unseeded(toy_engine())
    assert answer("AB", SamplingParams(seed=seed, max_tokens=6, ignore_eos=True)).outputs[0].token_ids == token_ids


def test_seeds_are_drawn_from_the_engines_seed_one_by_one() -> None:
    engine, same, other = toy_engine(seed=1), toy_engine(seed=1), toy_engine(seed=2)
    drawn = [unseeded(engine)[0] for _ in range(3)]
    assert drawn == [unseeded(same)[0] for _ in range(3)]
    assert len({*drawn, unseeded(other)[0]}) == 4


def test_a_refused_request_draws_no_seed() -> None:
    engine, undisturbed = toy_engine(), toy_engine()
    for prompt in ("", [999], "A" * 64):
        with pytest.raises(InvalidRequestError):
            engine.add_request("bad", prompt, SamplingParams())
    assert unseeded(engine) == unseeded(undisturbed)


def test_a_seed_that_was_given_is_shown_and_greedy_needs_none() -> None:
    assert answer("A", SamplingParams(seed=11, max_tokens=1)).outputs[0].seed == 11
    assert answer("A", GREEDY).outputs[0].seed is None


def test_a_request_that_needs_no_seed_draws_none() -> None:
    engine, undisturbed = toy_engine(), toy_engine()
    for request_id, params in (("greedy", GREEDY), ("seeded", SamplingParams(seed=5, max_tokens=2))):
        engine.add_request(request_id, "AB", params)
    drain(engine)
    assert unseeded(engine) == unseeded(undisturbed)


# ---- comings and goings


def test_a_refused_request_leaves_nothing() -> None:
    engine = toy_engine(num_blocks=3)
    for prompt, params in (("", GREEDY), ([-1], GREEDY), ("A" * 13, GREEDY), ("A", SamplingParams(logprobs=21))):
        with pytest.raises(InvalidRequestError):
            engine.add_request("r", prompt, params)
        assert_nothing_is_held(engine)
    engine.add_request("r", "A", GREEDY)
    assert drain(engine)["r"].finished


def test_an_id_in_use_is_refused_until_its_request_has_finished() -> None:
    engine = toy_engine()
    engine.add_request("r", "AB", GREEDY)
    with pytest.raises(InvalidRequestError, match=r"request_id must be new, got 'r'"):
        engine.add_request("r", "CD", GREEDY)
    assert drain(engine)["r"].outputs[0] == answer("AB").outputs[0]
    engine.add_request("r", "CD", GREEDY)
    assert drain(engine)["r"].outputs[0] == answer("CD").outputs[0]


@pytest.mark.parametrize("steps_before", [0, 1, 3, 6])
def test_an_abort_gives_back_what_there_was_and_every_block(steps_before: int) -> None:
    engine = toy_engine(max_num_batched_tokens=4)
    engine.add_request("r", [65] * 10, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    for _ in range(steps_before):
        engine.step()
    output = engine.abort_request("r")
    assert output is not None
    assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
    assert output.outputs[0].token_ids == toy_greedy([65] * 10, max(0, steps_before - 2), stops=())
    assert_nothing_is_held(engine)
    assert engine.step() == []


def test_aborting_what_is_not_here_is_no_error() -> None:
    engine = toy_engine()
    assert engine.abort_request("nobody") is None
    engine.add_request("r", "A", GREEDY)
    drain(engine)
    assert engine.abort_request("r") is None


def test_an_idle_step_does_nothing() -> None:
    assert toy_engine().step() == []


def test_a_step_that_fails_can_be_aborted_and_leaves_the_engine_whole() -> None:
    engine = toy_engine()
    worker: Any = engine.worker
    engine.add_request("r", "AB", GREEDY)
    engine.step()

    def fail() -> None:
        raise KeyboardInterrupt

    worker.before_step = fail
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    worker.before_step = None
    engine.abort_request("r")
    assert_nothing_is_held(engine)
    engine.add_request("r", "AB", GREEDY)
    assert drain(engine)["r"].outputs[0] == answer("AB").outputs[0]


def test_a_step_that_fails_can_be_taken_again() -> None:
    engine = toy_engine()
    worker: Any = engine.worker
    engine.add_request("r", "AB", GREEDY)
    failures = iter([RuntimeError("once")])

    def fail_once() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    worker.before_step = fail_once
    with pytest.raises(RuntimeError, match="once"):
        engine.step()
    assert drain(engine)["r"].outputs[0] == answer("AB").outputs[0]


def test_a_closed_engine_says_so_and_closes_its_worker_once() -> None:
    engine = toy_engine()
    worker: Any = engine.worker
    assert isinstance(worker, ToyWorker)
    engine.close()
    engine.close()
    assert worker.num_closed == 1
    for use in (
        engine.step,
        engine.has_unfinished_requests,
        lambda: engine.add_request("r", "A", GREEDY),
        lambda: engine.abort_request("r"),
    ):
        with pytest.raises(EngineClosedError, match="closed"):
            use()


def test_toy_answers_are_worth_comparing() -> None:
    """The oracle of this file: its logits are finite, spread out, and differ by token and by position."""
    logits = toy_logits(65, 3)
    assert math.isfinite(float(logits.sum()))
    assert len({tuple(toy_greedy([token], 6)) for token in range(5, 128)}) > 60
    assert toy_greedy([65], 1) != toy_greedy([66, 65], 1)
