"""GET /metrics: what the engine and the server have done, for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from fastpaged import _core
from fastpaged.errors import FastpagedError
from fastpaged.server.errors import ApiError
from fastpaged.server.metric_families import cache_config_family, families, split_families
from fastpaged.server.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

router = APIRouter(tags=["operation"])

OURS = "fastpaged:"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE = 0.1  # seconds for the engine to answer between two steps; it may compute a long one, or hang


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """In Prometheus's text format. Never waits for a step: the split of the KV slots is then the last one that was
    known."""
    service = Service.of(request)
    await _look_at_slots(service)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(list(_families(service))))
    ProcessCollector(registry=registry)
    # Not what the request prefers: the library's OpenMetrics has other names, with "_" for ":".
    return Response(generate_latest(registry), media_type=_TEXT)


class _Families:
    """What there is at this moment."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        """Of prometheus_client."""
        return self._found


def _families(service: Service) -> Iterator[Metric]:
    stats, model = service.engine.stats, service.model_names[0]
    if stats is None:
        raise ApiError(501, "this engine counts nothing: it was made with disable_log_stats")
    prefixes = (OURS,) if service.settings.metrics_compat is None else (OURS, f"{service.settings.metrics_compat}:")
    for prefix in prefixes:
        yield from families(prefix, stats, model)
        yield cache_config_family(prefix, service.engine.cache_config, model)
    yield from split_families(OURS, service.slots, model)
    yield from _of_server(service)


def _of_server(service: Service) -> Iterator[Metric]:
    answered = CounterMetricFamily(OURS + "http_requests", "Answered, by route and status.", labels=("route", "status"))
    for (route, status), count in service.http_requests.items():
        answered.add_metric([route, str(status)], count)
    yield answered
    build = InfoMetricFamily(OURS + "build", "What it is that runs.")
    build.add_metric([], {"version": _core.__version__, "arithmetic": service.fingerprint})
    yield build
    condition, progress = service.condition()
    yield GaugeMetricFamily(OURS + "healthy", "1 while /health says 200.", value=float(condition == "ok"))
    yield GaugeMetricFamily(OURS + "calls_in_flight", "Calls being answered.", value=service.num_in_flight)
    seconds = progress.seconds_since_progress if progress.num_unfinished else 0.0
    yield GaugeMetricFamily(OURS + "seconds_since_progress", "Of running work.", value=seconds)


async def _look_at_slots(service: Service) -> None:
    asking = asyncio.ensure_future(service.engine.kv_splits())
    done, _ = await asyncio.wait({asking}, timeout=_PATIENCE)
    if not done:
        asking.cancel()
    elif asking.exception() is None:
        service.slots = asking.result()
    elif not isinstance(asking.exception(), FastpagedError):
        await asking
