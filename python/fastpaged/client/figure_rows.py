"""The figures of a run as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged.client.figures import percentile_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WIDTH = 50
_TITLES = {
    "completed": "Successful requests:",
    "failed": "Failed requests:",
    "max_concurrency": "Maximum request concurrency:",
    "request_rate": "Request rate configured (RPS):",
    "duration": "Benchmark duration (s):",
    "total_input_tokens": "Total input tokens:",
    "total_output_tokens": "Total generated tokens:",
    "request_throughput": "Request throughput (req/s):",
    "request_goodput": "Request goodput (req/s):",
    "output_throughput": "Output token throughput (tok/s):",
    "max_output_tokens_per_s": "Peak output token throughput (tok/s):",
    "max_concurrent_requests": "Peak concurrent requests:",
    "total_token_throughput": "Total token throughput (tok/s):",
}
_METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def figure_rows(figures: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> list[str]:
    """Lines. What was not asked for, or could not be measured, is left out."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines += [_row(title, figures[name]) for name, title in _TITLES.items() if figures.get(name) is not None]
    for metric in metrics:
        rows = list(_rows_of_metric(figures, metric, percentiles))
        if rows:
            lines += [f"{_METRICS[metric]:-^{_WIDTH}}", *rows]
    failures = figures.get("failures") or {}
    if failures:
        lines += [f"{'Failures':-^{_WIDTH}}", *(f"{count} x {reason}" for reason, count in failures.items())]
    return [*lines, "=" * _WIDTH]


def _rows_of_metric(figures: Mapping[str, Any], metric: str, percentiles: Sequence[float]) -> Iterator[str]:
    for name in ("mean", "median", *map(percentile_name, percentiles)):
        value = figures.get(f"{name}_{metric}_ms")
        if value is not None:
            yield _row(f"{name.capitalize()} {metric.upper()} (ms):", value)


def _row(title: str, value: object) -> str:
    return f"{title:<40}{f'{value:.2f}' if isinstance(value, float) else value}"
