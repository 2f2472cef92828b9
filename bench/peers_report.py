"""What the rounds of bench/peers.py show: medians, ratios round by round, shares of the limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peer_process import Measured
from workloads import Request

OURS = "fastpaged"
_MAX_OTHERS = 0.15  # CPUs that others may use before a run is marked


@dataclass(frozen=True)
class Spread:
    """Median, least and most."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """REQUIRES: values is not empty."""
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 1) -> str:
        """For a table."""
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}-{self.high:.{digits}f}]"


@dataclass(frozen=True)
class Metric:
    """What a workload is about."""

    name: str
    unit: str

    def of(self, requests: Sequence[Request], run: Measured) -> float:
        """Of one run, in tokens per second. A peer that gives no time to the first token has the whole run's."""
        ttft_s = run.ttft_s or 0.0
        if self.name == "decode":
            return (requests[0]["out"] - 1) / (run.wall_s - ttft_s)
        if self.name == "prefill":
            return len(requests[0]["prompt"]) / (ttft_s or run.wall_s)
        return sum(request["out"] for request in requests) / run.wall_s


def metric_of(requests: Sequence[Request]) -> Metric:
    """One request: decoding, unless its prompt is much longer than its answer; several: output tokens."""
    if len(requests) > 1:
        return Metric("output", "output tok/s")
    prefill = len(requests[0]["prompt"]) > 8 * requests[0]["out"]
    return Metric("prefill", "prefill tok/s") if prefill else Metric("decode", "decode tok/s")


@dataclass(frozen=True)
class WorkloadResult:
    """Of one workload: each engine's runs, by round; why others have none; the limit in the metric's unit."""

    name: str
    requests: Sequence[Request]
    runs: Mapping[str, Sequence[Measured]]
    failures: Mapping[str, str]
    descriptions: Mapping[str, str]
    limit: float
    warnings: Sequence[str] = ()  # of the machine's rates before and after

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        metric = metric_of(self.requests)
        engines = {}
        for name, runs in self.runs.items():
            rates = [metric.of(self.requests, run) for run in runs]
            engines[name] = {
                "engine": self.descriptions[name],
                "rates": rates,
                "median": statistics.median(rates),
                "share_of_limit": statistics.median(rates) / self.limit,
                "wall_s": [run.wall_s for run in runs],
                "ttft_s": [run.ttft_s for run in runs],
                "others_cores": [run.others_cores for run in runs],
                "first_tokens_like_ours": self._agreement(name),
                "ours_over_it": vars(self.ratio(name)) if name != OURS else None,
            }
        return {
            "workload": self.name,
            "metric": metric.unit,
            "num_requests": len(self.requests),
            "num_prompt_tokens": sum(len(request["prompt"]) for request in self.requests),
            "num_output_tokens": sum(request["out"] for request in self.requests),
            "limit": self.limit,
            "warnings": list(self.warnings),
            "engines": engines,
            "failures": dict(self.failures),
        }

    def ratio(self, name: str) -> Spread:
        """Ours over this peer's, of runs of the same round."""
        metric = metric_of(self.requests)
        pairs = zip(self.runs[OURS], self.runs[name], strict=True)
        return Spread.of([metric.of(self.requests, a) / metric.of(self.requests, b) for a, b in pairs])

    def markdown(self) -> str:
        """A heading, a table, and a line for each peer that failed."""
        metric = metric_of(self.requests)
        count, plural = len(self.requests), "s" if len(self.requests) > 1 else ""
        num_prompt, num_out = sum(len(r["prompt"]) for r in self.requests), sum(r["out"] for r in self.requests)
        lines = [
            f"### {self.name}: {count} request{plural}, {num_prompt} + {num_out} tokens",
            "",
            f"Limit of this run: {self.limit:.1f} {metric.unit}.",
            "",
            f"| engine | {metric.unit} | share of the limit | first token, ms | wall, s | fastpaged over it |",
            "|---|---|---|---|---|---|",
        ]
        for name, runs in self.runs.items():
            rates = Spread.of([metric.of(self.requests, run) for run in runs])
            ttfts = [1e3 * run.ttft_s for run in runs if run.ttft_s is not None]
            ratio = "" if name == OURS else f"{self.ratio(name).text(2)} x"
            ttft = Spread.of(ttfts).text(0) if ttfts else ""
            wall = Spread.of([run.wall_s for run in runs]).text(2)
            share = f"{rates.median / self.limit:.0%}{' (?)' if rates.median > 1.005 * self.limit else ''}"
            lines.append(f"| {self.descriptions[name]} | {rates.text()} | {share} | {ttft} | {wall} | {ratio} |")
        lines += ["", *(f"{name} has no result: {reason}" for name, reason in self.failures.items())]
        disturbed = sum(run.others_cores > _MAX_OTHERS for runs in self.runs.values() for run in runs)
        if disturbed:
            lines.append(f"During {disturbed} runs others used more than {_MAX_OTHERS} CPUs.")
        if any("(?)" in line for line in lines):
            lines.append("(?): above the limit: the machine was slower when it was measured than in the runs.")
        return "\n".join([*lines, *self.warnings]).rstrip() + "\n"

    def _agreement(self, name: str) -> int:
        """How many tokens of the first answer are ours, before the first that is not."""
        ours, theirs = self.runs[OURS][0].tokens[0], self.runs[name][0].tokens[0]
        return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
