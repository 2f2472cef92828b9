"""An engine's statistics as Prometheus knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastpaged.engine.engine_stats import EngineStats
    from fastpaged.engine.histogram import Histogram
    from fastpaged.kv_snapshot import KVSplit

_LABELS = ("model_name", "engine")

# Of EngineStats: (field, name, what it says). Of the whole engine; a counter's name gets _total.
_COUNTERS = (
    ("num_preemptions", "num_preemptions", "Requests that had to give up their KV blocks for a while."),
    ("num_generation_tokens", "generation_tokens", "Tokens generated."),
    ("num_prefix_queries", "prefix_cache_queries", "Tokens of prompts that were looked up in the prefix cache."),
    ("num_tokens_recomputed", "tokens_recomputed", "Tokens computed again after a preemption."),
    ("num_started", "requests_started", "Requests queued."),
    ("num_steps", "steps", "Steps of the engine."),
    ("num_failed_steps", "steps_failed", "Steps that failed, and ended the requests in them."),
)
_GAUGES = (
    ("num_running", "num_requests_running", "Requests let in and not finished."),
    ("num_waiting", "num_requests_waiting", "Requests that have never been let in."),
    ("num_preempted", "num_requests_preempted", "Of those running, without their KV blocks until there is room."),
    ("kv_usage", "kv_cache_usage_perc", "The share of the KV blocks that is held, 1 being all."),
)
_HISTOGRAMS = (
    ("time_to_first_token", "time_to_first_token_seconds", "From arrival."),
    ("between_tokens", "inter_token_latency_seconds", "Between two steps that took a request on."),
    ("time_per_output_token", "request_time_per_output_token_seconds", "Of a request, after its first token."),
    ("e2e", "e2e_request_latency_seconds", "From arrival to the end."),
    ("queue_time", "request_queue_time_seconds", "From arrival until it was let in."),
    ("prefill_time", "request_prefill_time_seconds", "From then to its first token."),
    ("decode_time", "request_decode_time_seconds", "From then to its last."),
    ("inference_time", "request_inference_time_seconds", "Both."),
    ("request_prompt_tokens", "request_prompt_tokens", "Of a request."),
    ("request_generation_tokens", "request_generation_tokens", "Of a request, all its answers together."),
    ("max_generation_tokens", "request_max_num_generation_tokens", "Of a request's longest answer."),
    ("params_n", "request_params_n", "Answers asked for."),
    ("params_max_tokens", "request_params_max_tokens", "Tokens allowed at most, within the context."),
    ("computed_prompt_tokens", "request_prefill_kv_computed_tokens", "Of a prompt, without what was cached."),
    ("preemptions", "request_num_preemptions", "Of a request."),
    ("step_tokens", "iteration_tokens_total", "Tokens computed in a step."),
)


def families(prefix: str, stats: EngineStats, model_name: str) -> Iterator[Metric]:
    """Of the statistics as they stand. prefix: before each name, with its colon."""
    labels = [model_name, "0"]
    for field, name, text in _COUNTERS:
        counter = CounterMetricFamily(prefix + name, text, labels=_LABELS)
        counter.add_metric(labels, getattr(stats, field))
        yield counter
    for field, name, text in _GAUGES:
        gauge = GaugeMetricFamily(prefix + name, text, labels=_LABELS)
        gauge.add_metric(labels, getattr(stats, field))
        yield gauge
    for field, name, text in _HISTOGRAMS:
        yield _histogram(prefix + name, text, labels, getattr(stats, field))
    yield from _by_label(prefix, stats, labels)


def _by_label(prefix: str, stats: EngineStats, labels: list[str]) -> Iterator[Metric]:
    cached = stats.prompt_tokens["device_cache"] + stats.prompt_tokens["host_cache"]
    totals = {
        "prompt_tokens": (cached + stats.prompt_tokens["computed"], "Of prompts that were let in, cached or computed."),
        "prompt_tokens_cached": (cached, "Of prompts, found in the prefix cache."),
        "prefix_cache_hits": (cached, "Tokens of prompts that the prefix cache had."),
    }
    for name, (value, text) in totals.items():
        counter = CounterMetricFamily(prefix + name, text, labels=_LABELS)
        counter.add_metric(labels, value)
        yield counter
    split: tuple[tuple[str, str, str, Mapping[str, float]], ...] = (
        ("prompt_tokens_by_source", "source", "Of prompts that were let in.", stats.prompt_tokens),
        ("request_success", "finished_reason", "Requests finished, by every reason.", stats.finished),
        ("requests_expired", "limit", "Of those aborted: whose time was up.", stats.expired),
        ("admission_rejections", "reason", "Requests refused at the door.", stats.rejected),
        ("kv_bytes_swapped", "direction", "Of requests' KV blocks, to and from host memory.", stats.bytes_swapped),
        ("step_phase_seconds", "phase", "Where the time of steps went.", stats.phase_seconds),
    )
    for name, label, text, values in split:
        counter = CounterMetricFamily(prefix + name, text, labels=(*_LABELS, label))
        for which, number in values.items():
            counter.add_metric([*labels, which], number)
        yield counter
    waiting = GaugeMetricFamily(
        prefix + "num_requests_waiting_by_reason", "Requests that wait, and why.", labels=(*_LABELS, "reason")
    )
    waiting.add_metric([*labels, "capacity"], stats.num_waiting)
    waiting.add_metric([*labels, "deferred"], 0)
    yield waiting
    yield from _of_what_is_not_there(prefix, stats, labels)


def _of_what_is_not_there(prefix: str, stats: EngineStats, labels: list[str]) -> Iterator[Metric]:
    """Boards and gateways of other engines look for these."""
    by_source = CounterMetricFamily(
        prefix + "prompt_tokens_cached_by_source",
        "Of prompts, by the tier they were found in.",
        labels=(*_LABELS, "source"),
    )
    for source in ("device_cache", "host_cache"):
        by_source.add_metric([*labels, source], stats.prompt_tokens[source])
    yield by_source
    failed = CounterMetricFamily(
        prefix + "corrupted_requests", "Finished by an error: see request_success.", labels=_LABELS
    )
    failed.add_metric(labels, stats.finished["error"])
    yield failed
    for name in ("external_prefix_cache_queries", "external_prefix_cache_hits"):
        counter = CounterMetricFamily(prefix + name, "There is no cache outside the engine.", labels=_LABELS)
        counter.add_metric(labels, 0)
        yield counter
    asleep = GaugeMetricFamily(prefix + "engine_sleep_state", "It never sleeps.", labels=_LABELS)
    asleep.add_metric(labels, 0)
    yield asleep
    adapters = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
    lora = GaugeMetricFamily(prefix + "lora_requests_info", "There are no adapters.", labels=(*_LABELS, *adapters))
    lora.add_metric([*labels, "0", "", ""], 0)
    yield lora


def _histogram(name: str, text: str, labels: list[str], values: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text, labels=_LABELS)
    bounds = [_bound(bound) for bound in values.bounds] + ["+Inf"]
    family.add_metric(labels, list(zip(bounds, values.cumulative(), strict=True)), values.total)
    return family


def _bound(bound: float) -> str:
    return repr(float(bound))


def split_families(prefix: str, tiers: Mapping[str, KVSplit], model_name: str) -> Iterator[Metric]:
    """Where the slots of each tier's KV pool are."""
    gauge = GaugeMetricFamily(
        prefix + "kv_slots",
        "Slots of the KV pool, each for a token, by what they hold.",
        labels=(*_LABELS, "tier", "use"),
    )
    for tier, split in tiers.items():
        for use in ("token_states", "reserved", "internal_waste", "free", "quarantined"):
            gauge.add_metric([model_name, "0", tier, use], getattr(split, use))
    yield gauge
    beside = GaugeMetricFamily(
        prefix + "kv_slots_beside",
        "Slots counted above: kept for later, pinned; and saved.",
        labels=(*_LABELS, "tier", "use"),
    )
    for tier, split in tiers.items():
        for use in ("cached_free", "pinned", "saved"):
            beside.add_metric([model_name, "0", tier, use], getattr(split, use))
    yield beside


def cache_config_family(prefix: str, values: Mapping[str, str], model_name: str) -> Metric:
    """The cache's configuration, in labels of a 1."""
    gauge = GaugeMetricFamily(prefix + "cache_config_info", "Of the KV cache.", labels=(*_LABELS, *values))
    gauge.add_metric([model_name, "0", *values.values()], 1)
    return gauge
