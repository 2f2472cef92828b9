"""Spans of requests, for OpenTelemetry. Imported where an endpoint is given, and nowhere else."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise InvalidRequestError(
        f"otlp_traces_endpoint needs OpenTelemetry ({error.name} is not installed): pip install 'fastpaged[otel]'"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from fastpaged.server.request_report import RequestReport


_LAST_WORDS = 5.0  # seconds for spans at the end: a collector that is gone holds up no shutdown


class RequestTraces:
    """A span for every request, under the caller's where it says which that is (traceparent)."""

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        """endpoint: a collector's, as http://localhost:4318/v1/traces. exporter: where spans go instead."""
        resource = Resource.create({"service.name": "fastpaged"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("fastpaged")
        self._propagator = TraceContextTextMapPropagator()

    def tell(self, report: RequestReport, headers: Any) -> None:
        """See Reader. Made when the request has ended: while it runs it costs nothing."""
        end = time.time_ns()
        context = self._propagator.extract({"traceparent": headers.get("traceparent", "")})
        span = self._tracer.start_span("llm_request", context=context, start_time=end - int(report.e2e_s * 1e9))
        attributes: dict[str, Any] = {
            "gen_ai.request.id": report.id,
            "gen_ai.response.model": report.model,
            "gen_ai.request.n": report.n,
            "gen_ai.usage.prompt_tokens": report.prompt_tokens,
            "gen_ai.usage.completion_tokens": report.generation_tokens,
            "gen_ai.response.finish_reasons": report.outcome.split("+"),
            "gen_ai.latency.time_in_queue": report.queue_s,
            "gen_ai.latency.time_to_first_token": report.ttft_s,
            "gen_ai.latency.time_in_model_prefill": report.prefill_s,
            "gen_ai.latency.time_in_model_decode": report.decode_s,
            "gen_ai.latency.e2e": report.e2e_s,
            "fastpaged.cached_tokens": report.cached_tokens,
            "fastpaged.preemptions": report.preemptions,
            "fastpaged.tokens_recomputed": report.tokens_recomputed,
        }
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if report.error is not None:
            span.set_status(Status(StatusCode.ERROR, report.error))
        span.end(end_time=end)

    def close(self, patience: float = _LAST_WORDS) -> None:
        """Sends what was not sent yet, as far as that goes within so many seconds."""
        sending = threading.Thread(target=self._provider.shutdown, name="fastpaged-traces", daemon=True)
        sending.start()
        sending.join(patience)
