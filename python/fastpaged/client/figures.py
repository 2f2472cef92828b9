"""The figures of a run, by the names that benchmarks of serving engines give them.

ttft: time to the first token. tpot: time per token after it. itl: time between events with tokens. e2el: time to the
end. Failed requests count as failed and in no other figure, but for the requests in flight and the duration.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastpaged.client.load import Run
    from fastpaged.client.sample import Sample

METRICS = ("ttft", "tpot", "itl", "e2el")
_OF_GOODPUT = ("ttft", "tpot", "e2el")


def figures(
    run: Run, *, metrics: Sequence[str], percentiles: Sequence[float], goodput: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """metrics: of METRICS, whose mean, median, standard deviation and percentiles are wanted, in ms. goodput: the most
    ms that each of ttft, tpot and e2el may take in a request that counts for request_goodput."""
    good = [sample for sample in run.samples if sample.error is None]
    duration = run.duration
    num_input, num_output = sum(s.num_input_tokens for s in good), sum(s.num_output_tokens for s in good)
    values: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(run.samples) - len(good),
        "failures": dict(Counter(s.error for s in run.samples if s.error is not None).most_common()),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration,
        "request_goodput": None,
        "output_throughput": num_output / duration,
        "total_token_throughput": (num_input + num_output) / duration,
        "max_output_tokens_per_s": _most_tokens_in_a_second(good, run.started),
        "max_concurrent_requests": _most_in_flight(run.samples),
    }
    if goodput is not None:
        values["request_goodput"] = sum(_is_within(sample, goodput) for sample in good) / duration
    for metric in metrics:
        values |= _statistics(metric, _seconds(metric, good), percentiles)
    return values


def details(run: Run) -> dict[str, Any]:
    """What each request was, in their order; times in seconds, start_times from the start of the run."""
    return {
        "input_lens": [sample.num_input_tokens for sample in run.samples],
        "output_lens": [sample.num_output_tokens for sample in run.samples],
        "ttfts": [sample.ttft for sample in run.samples],
        "itls": [sample.itls for sample in run.samples],
        "latencies": [sample.latency for sample in run.samples],
        "start_times": [sample.sent - run.started for sample in run.samples],
        "queue_times": [sample.waited for sample in run.samples],
        "generated_texts": ["".join(sample.text) for sample in run.samples],
        "errors": [sample.error or "" for sample in run.samples],
    }


def percentile_name(percent: float) -> str:
    """As in p99 and p99.9."""
    return f"p{percent:g}"


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Of "ttft:200", "ttft:200,tpot:50" and the like, in ms. InvalidRequestError for anything else."""
    limits = {}
    for part in ",".join(texts).split(","):
        name, _, value = part.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if name not in _OF_GOODPUT or not limit > 0:
            raise InvalidRequestError(f"--goodput must be NAME:MS, names of {', '.join(_OF_GOODPUT)}, got {part!r}")
        limits[name] = limit
    return limits


def _seconds(metric: str, samples: Sequence[Sample]) -> list[float]:
    if metric == "itl":
        return [seconds for sample in samples for seconds in sample.itls]
    return [seconds for sample in samples if (seconds := _times(sample)[metric]) is not None]


def _times(sample: Sample) -> dict[str, float | None]:
    return {"ttft": sample.ttft, "tpot": sample.tpot, "e2el": sample.latency}


def _statistics(metric: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    """None where there is nothing to count. Percentiles lie between the two nearest ranks."""
    ms = 1e3 * np.asarray(seconds)
    names = ["mean", "median", "std", *map(percentile_name, percentiles)]
    if not ms.size:
        return {f"{name}_{metric}_ms": None for name in names}
    values = [ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, percentiles)]
    return {f"{name}_{metric}_ms": float(value) for name, value in zip(names, values, strict=True)}


def _is_within(sample: Sample, goodput: Mapping[str, float]) -> bool:
    """A request that has no such time, for it has too few tokens, is within its limit."""
    times = _times(sample)
    return all(1e3 * (times[name] or 0.0) <= limit for name, limit in goodput.items())


def _most_tokens_in_a_second(samples: Sequence[Sample], started: float) -> float:
    """Of the seconds of the run. Tokens of one request are spread evenly over its events."""
    tokens: dict[int, float] = {}
    for sample in samples:
        for second, events in Counter(int(time - started) for time in sample.token_times).items():
            share = sample.num_output_tokens / len(sample.token_times)
            tokens[second] = tokens.get(second, 0.0) + share * events
    return max(tokens.values(), default=0.0)


def _most_in_flight(samples: Sequence[Sample]) -> int:
    """An answer that ends when another request is sent makes room for it."""
    changes = sorted([(sample.sent, 1) for sample in samples] + [(sample.ended, -1) for sample in samples])
    return max(itertools.accumulate(change for _, change in changes))
