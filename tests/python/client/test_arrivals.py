"""When requests come: at random with the rate that was asked for, or as in a trace."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from fastpaged.client.arrivals import mean_rate, random_arrivals, trace_arrivals
from fastpaged.client.bench_request import BenchRequest


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def trace(*times: float) -> list[BenchRequest]:
    return [BenchRequest([1], 1, 1, time) for time in times]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness: float) -> None:
    times = gaps(random_arrivals(40_000, 8.0, burstiness, seed=3))
    mean = statistics.fmean(times)
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert statistics.pstdev(times) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_poisson_process_has_exponential_gaps() -> None:
    times = gaps(random_arrivals(40_000, 1.0, 1.0, seed=5))
    for quantile in (0.5, 1.0, 2.0):
        assert sum(gap > quantile for gap in times) / len(times) == pytest.approx(math.exp(-quantile), abs=0.01)


def test_a_seed_repeats_a_pattern_and_a_rate_stretches_it() -> None:
    slow, fast = random_arrivals(50, 1.0, 1.0, 0), random_arrivals(50, 10.0, 1.0, 0)
    assert slow == random_arrivals(50, 1.0, 1.0, 0) != random_arrivals(50, 1.0, 1.0, 1)
    assert slow == pytest.approx([10 * time for time in fast])
    assert slow[0] == 0
    assert random_arrivals(1, 1.0, 1.0, 0) == [0]


def test_at_an_infinite_rate_all_come_at_once() -> None:
    assert random_arrivals(3, math.inf, 1.0, 0) == [0, 0, 0]
    assert mean_rate([0, 0, 0]) == math.inf


def test_a_trace_keeps_its_times_or_is_stretched_to_a_rate() -> None:
    requests = trace(100.0, 101.0, 104.0)  # half a request per second
    assert trace_arrivals(requests, None) == [0, 1, 4]
    assert mean_rate([0, 1, 4]) == 0.5
    assert trace_arrivals(requests, 2.0) == [0, 0.25, 1]
    assert mean_rate(trace_arrivals(requests, 2.0)) == 2.0
    assert trace_arrivals(trace(5.0, 5.0), 2.0) == [0, 0]
    assert trace_arrivals(trace(5.0), 2.0) == [0]
