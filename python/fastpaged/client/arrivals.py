"""When the requests of a load come."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.client.bench_request import BenchRequest


def random_arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start, the first at 0. rate: requests per second; inf: all at once.

    The gaps are gamma distributed with the mean 1 / rate and the shape `burstiness`: 1 is a Poisson process, less is
    burstier, more is steadier. Another rate stretches the same pattern.
    """
    rng = random.Random(f"arrivals:{seed}")
    gaps = [rng.gammavariate(burstiness, 1 / burstiness) / rate for _ in range(count - 1)]
    return list(itertools.accumulate(gaps, initial=0.0))[:count]


def trace_arrivals(requests: Sequence[BenchRequest], rate: float | None) -> list[float]:
    """A trace's own times from its first request on, stretched so that on average so many come per second; None: as
    they are."""
    first = requests[0].arrival_s or 0.0
    times = [(request.arrival_s or 0.0) - first for request in requests]
    own = mean_rate(times)
    if rate is None or math.isinf(own):
        return times
    return [time * own / rate for time in times]


def mean_rate(times: Sequence[float]) -> float:
    """Per second; inf if all come at once."""
    return (len(times) - 1) / times[-1] if times[-1] > 0 else math.inf
