"""An engine's statistics: which bucket, which reason, and what a step's count costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import PROMPTS, greedy, ids, inner, run
from engine.fake_clock import SECOND, assert_nothing_is_held, on_fake_clock
from engine.fakes import toy_engine

from fastpaged import AsyncLLMEngine, LLMEngine, SamplingParams
from fastpaged.engine.engine_stats import EngineStats
from fastpaged.engine.histogram import Histogram, one_two_five


def stats_of(engine: LLMEngine) -> EngineStats:
    assert engine.stats is not None
    return engine.stats


def counted(histogram: Histogram) -> dict[float, int]:
    """By the bucket's bound."""
    bounds = (*histogram.bounds, float("inf"))
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


def test_a_value_on_a_bound_counts_below_it_and_one_beyond_all_counts_too() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.cumulative() == [2, 4, 5]
    assert (histogram.count, histogram.total) == (5, 7.5)
    assert one_two_five(60) == [1, 2, 5, 10, 20, 50]


def test_a_scripted_day_fills_exactly_these_buckets() -> None:
    """Steps take 0.03 s, requests come two at a time and are computed one at a time."""
    engine = toy_engine(max_num_seqs=1, enable_prefix_caching=False, disable_log_stats=False)
    clock = on_fake_clock(engine)
    for name, max_tokens in (("first", 4), ("second", 12)):
        engine.add_request(name, PROMPTS[0], greedy(max_tokens))
    while engine.has_unfinished_requests():
        engine.on_planned = lambda: clock.pass_seconds(0.03)
        engine.step()
    stats = stats_of(engine)
    assert stats.num_steps == 16
    assert counted(stats.time_to_first_token) == {0.04: 1, 0.25: 1}  # after one step, and after five
    assert counted(stats.between_tokens) == {0.05: 3 + 11}
    assert stats.between_tokens.total == pytest.approx(14 * 0.03)
    assert counted(stats.time_per_output_token) == {0.05: 2}
    assert counted(stats.queue_time) == {0.3: 2}
    assert counted(stats.decode_time) == {0.3: 1, 0.5: 1}
    assert counted(stats.e2e) == {0.3: 1, 0.5: 1}
    assert counted(stats.request_prompt_tokens) == {5: 2}
    assert counted(stats.request_generation_tokens) == {5: 1, 20: 1}
    assert counted(stats.params_max_tokens) == {5: 1, 20: 1}
    assert counted(stats.preemptions) == {0.0: 2}
    assert counted(stats.step_tokens) == {1.0: 14, 8.0: 2}
    assert stats.phase_seconds["compute"] == pytest.approx(16 * 0.03)
    assert sum(stats.phase_seconds.values()) == pytest.approx(16 * 0.03)


@pytest.mark.parametrize("stage", ["copy", "execute"])
def test_requests_of_a_step_that_fails_have_finished_by_an_error(stage: str, tmp_path: Path) -> None:
    toy = toy_engine(max_num_seqs=1, disable_log_stats=False, fault_trace_dir=str(tmp_path))
    works, calls = getattr(toy.worker, stage), [0]

    def fails_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise MemoryError
        return works(*args)

    setattr(toy.worker, stage, fails_once)
    engine = AsyncLLMEngine.with_engine(toy)

    async def all_of_them() -> None:
        await asyncio.gather(*(ids(engine, prompt, greedy()) for prompt in PROMPTS[:4]), return_exceptions=True)

    try:
        run(all_of_them())
        stats = stats_of(inner(engine))
        assert stats.num_failed_steps == 1
        assert stats.finished == {"stop": 0, "length": 3, "abort": 0, "error": 1}
        assert (stats.num_started, stats.num_running, stats.num_waiting) == (4, 0, 0)
    finally:
        engine.shutdown()


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_who_was_preempted_is_counted_until_it_is_back(mode: str) -> None:
    engine = toy_engine(num_blocks=12, num_host_blocks=24, preemption_mode=mode, disable_log_stats=False)
    on_fake_clock(engine)
    for number in range(4):
        engine.add_request(str(number), PROMPTS[number], greedy(30))
    stats, most = stats_of(engine), 0
    while engine.has_unfinished_requests():
        engine.step()
        assert stats.num_running == engine.scheduler.num_running + stats.num_preempted
        most = max(most, stats.num_preempted)
    assert most > 0
    assert stats.num_preempted == 0
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_every_prompt_that_was_let_in_is_counted_once_by_source(mode: str) -> None:
    """Under pressure, with prompts that others have left in the cache, and some that are preempted."""
    engine = toy_engine(num_blocks=16, num_host_blocks=16, preemption_mode=mode, disable_log_stats=False)
    clock = on_fake_clock(engine)
    stats, lengths = stats_of(engine), dict[str, int]()
    for number in range(120):
        if number % 3 == 0:
            prompt = PROMPTS[number % 4] * (1 + number % 5)
            engine.add_request(str(number), prompt, greedy(5 + number % 13))
            lengths[str(number)] = len(prompt)
        clock.now += SECOND
        engine.step()
        begun = [length for name, length in lengths.items() if not _waits(engine, name)]
        assert sum(stats.prompt_tokens.values()) == sum(begun)
    assert stats.num_preemptions > 0
    assert stats.prompt_tokens["device_cache"] > 0
    assert stats.num_prefix_queries >= stats.prompt_tokens["device_cache"] + stats.prompt_tokens["host_cache"]


def _waits(engine: LLMEngine, name: str) -> bool:
    return engine.has_request(name) and not engine._outputs.has_begun(name)


def test_samples_of_one_prompt_are_one_request() -> None:
    engine = toy_engine(disable_log_stats=False)
    on_fake_clock(engine)
    engine.add_request("r", PROMPTS[0], SamplingParams(n=2, best_of=3, seed=1, max_tokens=4, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    stats = stats_of(engine)
    assert (stats.num_started, stats.finished["length"]) == (1, 1)
    assert stats.num_generation_tokens == stats.request_generation_tokens.total == 12
    assert (stats.params_n.total, stats.max_generation_tokens.total) == (2, 4)
    assert sum(stats.prompt_tokens.values()) == stats.request_prompt_tokens.total == len(PROMPTS[0])
