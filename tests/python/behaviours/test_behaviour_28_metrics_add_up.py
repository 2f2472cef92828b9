"""Elsewhere: aborts count nothing, recomputing counts as a cache hit, n counts the prompt n times."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine.async_tools import PROMPTS
from engine.fake_clock import SECOND, assert_nothing_is_held, on_fake_clock
from engine.fakes import toy_engine

from fastpaged import LLMEngine, QueueOverflowError, SamplingParams
from fastpaged.engine.engine_stats import EngineStats


def stats_of(engine: LLMEngine) -> EngineStats:
    assert engine.stats is not None
    return engine.stats


def check_conservation(engine: LLMEngine) -> None:
    stats = stats_of(engine)
    assert stats.num_started == sum(stats.finished.values()) + stats.num_running + stats.num_waiting
    assert stats.num_waiting == engine._outputs.num_waiting
    assert stats.time_to_first_token.count >= stats.decode_time.count


def random_params(rng: random.Random) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 1},
        {"n": 3, "seed": 2},
        {"n": 2, "best_of": 3, "seed": 4},
        {"use_beam_search": True, "n": 2, "temperature": 0.0},
        {"stop_token_ids": [rng.randrange(64)], "seed": 5},
    ]
    return SamplingParams(max_tokens=rng.randrange(1, 20), **rng.choice(kinds))


@pytest.mark.parametrize("seed", range(12))
def test_behaviour_28_started_is_finished_by_every_reason_and_running_and_waiting(seed: int) -> None:
    rng = random.Random(seed)
    engine = toy_engine(
        num_blocks=20,
        num_host_blocks=8 if seed % 2 else 0,
        preemption_mode="swap" if seed % 2 else "recompute",
        max_num_seqs=6,
        max_num_queued_requests=5,
        async_scheduling=seed % 3 == 0,
        disable_log_stats=False,
    )
    clock = on_fake_clock(engine)
    added: list[str] = []
    refused = 0
    for number in range(300):
        action = rng.random()
        if action < 0.4:
            terms = {"deadline": 5.0} if rng.random() < 0.2 else {"queue_timeout": 2.0} if rng.random() < 0.2 else {}
            prompt = rng.choice(PROMPTS) * rng.choice((1, 1, 4))
            try:
                engine.add_request(str(number), prompt, random_params(rng), **terms)  # type: ignore[arg-type]
                added.append(str(number))
            except QueueOverflowError:
                refused += 1
        elif action < 0.5 and added:
            engine.abort_request(rng.choice(added))
        else:
            clock.now += rng.randrange(SECOND)
            engine.step()
        check_conservation(engine)
    while engine.has_unfinished_requests():
        clock.now += SECOND // 10
        engine.step()
        check_conservation(engine)
    stats = stats_of(engine)
    assert stats.num_started == len(added) == sum(stats.finished.values())
    assert stats.rejected["queue_full"] == refused
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.e2e.count == len(added)
    assert stats.expired["deadline"] + stats.expired["queue_timeout"] <= stats.finished["abort"]
    assert_nothing_is_held(engine)


def test_behaviour_28_a_prompt_counts_once_whatever_n_and_a_first_token_once() -> None:
    engine = toy_engine(disable_log_stats=False)
    clock = on_fake_clock(engine)
    engine.add_request("many", PROMPTS[0], SamplingParams(n=4, seed=1, max_tokens=5, ignore_eos=True))
    while engine.has_unfinished_requests():
        clock.now += SECOND
        engine.step()
    stats = stats_of(engine)
    assert sum(stats.prompt_tokens.values()) == len(PROMPTS[0])
    assert stats.num_generation_tokens == 20
    assert stats.time_to_first_token.count == 1
    assert stats.time_to_first_token.total == 1.0
    # Four steps behind the first, a second each; the branches of a step have waited once.
    assert (stats.between_tokens.count, stats.between_tokens.total) == (4, 4.0)
    assert (stats.params_n.total, stats.max_generation_tokens.total) == (4.0, 5.0)
    assert (stats.time_per_output_token.count, stats.time_per_output_token.total) == (1, 1.0)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_behaviour_28_what_a_preemption_computes_again_is_no_prompt_and_no_cache_hit(mode: str) -> None:
    engine = toy_engine(
        num_blocks=12, num_host_blocks=12, preemption_mode=mode, enable_prefix_caching=False, disable_log_stats=False
    )
    on_fake_clock(engine)
    for number in range(4):
        engine.add_request(
            str(number), PROMPTS[number], SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
        )
    while engine.has_unfinished_requests():
        engine.step()
    stats = stats_of(engine)
    assert stats.num_preemptions > 0
    assert stats.prompt_tokens == {
        "computed": sum(len(PROMPTS[n]) for n in range(4)),
        "device_cache": 0,
        "host_cache": 0,
    }
    assert stats.num_generation_tokens == 4 * 16
    assert (stats.num_tokens_recomputed > 0) == (mode == "recompute")
    assert (stats.bytes_swapped["out"] > 0) == (mode == "swap")
    assert stats.bytes_swapped["out"] == stats.bytes_swapped["in"]


def test_behaviour_28_times_are_those_of_the_clock() -> None:
    engine = toy_engine(max_num_seqs=1, disable_log_stats=False)
    clock = on_fake_clock(engine)
    for name in ("first", "second"):
        engine.add_request(name, PROMPTS[0], SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))
    engine.on_planned = lambda: clock.pass_seconds(1)  # what a step takes
    while engine.has_unfinished_requests():
        engine.step()
    stats = stats_of(engine)
    assert (stats.queue_time.count, stats.queue_time.total) == (2, 3.0)
    assert (stats.prefill_time.total, stats.decode_time.total, stats.inference_time.total) == (2.0, 4.0, 6.0)
    assert (stats.e2e.count, stats.e2e.total) == (2, 3.0 + 6.0)
    assert stats.params_max_tokens.total == 6.0


def test_behaviour_28_nothing_is_counted_where_nobody_asked() -> None:
    assert toy_engine().stats is None


def test_behaviour_28_what_may_be_generated_counts_as_the_context_allows_it() -> None:
    engine = toy_engine(max_model_len=16, disable_log_stats=False)
    engine.add_request("long", PROMPTS[0], SamplingParams(max_tokens=10**6, temperature=0.0, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    assert stats_of(engine).params_max_tokens.total == 16 - len(PROMPTS[0])
