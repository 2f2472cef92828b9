"""Spans are an extra: absent unless asked for, said so where they cannot be had, and in nobody's way at the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from fastpaged.cli.main import main
from fastpaged.server.otel_traces import RequestTraces
from fastpaged.server.request_report import RequestReport

REPORT = RequestReport(
    id="cmpl-1", model="tiny", outcome="failed", stream=False, n=1, prompt_tokens=3, cached_tokens=0,
    generation_tokens=0, queue_s=0.5, prefill_s=None, decode_s=None, ttft_s=None, e2e_s=2.0, preemptions=0,
    tokens_recomputed=0, bytes_swapped=0, error="StepFailedError",
)  # fmt: skip


class Collector(SpanExporter):
    """Takes spans once it is let."""

    def __init__(self) -> None:
        self.lets = threading.Event()
        self.got: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.lets.wait(60)
        self.got += spans
        return SpanExportResult.SUCCESS


def test_a_server_without_an_endpoint_imports_nothing_that_sends() -> None:
    """Of OpenTelemetry; its API alone is a matter of FastAPI, which looks whether there is a provider."""
    code = (
        "import sys, fastpaged.server.app, fastpaged.server.run_server; "
        "assert not any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_extra_that_is_not_installed_is_named_before_a_model_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "fastpaged.server.otel_traces")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["serve", "no such model", "--otlp-traces-endpoint", "http://localhost:4318/v1/traces"]) == 2
    said = capsys.readouterr().err
    assert "otlp_traces_endpoint" in said
    assert "pip install 'fastpaged[otel]'" in said


def test_a_failed_request_is_a_span_of_its_length_that_says_so() -> None:
    collector = Collector()
    collector.lets.set()
    traces = RequestTraces("http://nowhere", collector)
    for parent in ("", "junk", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"):
        traces.tell(REPORT, {"traceparent": parent})
    traces.close()
    assert len(collector.got) == 3
    for span in collector.got:
        assert span.parent is None
        assert span.status.description == "StepFailedError"
        assert span.end_time is not None
        assert span.start_time is not None
        assert span.end_time - span.start_time == 2 * 10**9
        assert span.attributes is not None
        assert span.attributes["gen_ai.latency.time_in_queue"] == 0.5
        assert "gen_ai.latency.time_to_first_token" not in span.attributes


def test_a_caller_who_traces_nothing_is_not_traced() -> None:
    collector = Collector()
    collector.lets.set()
    traces = RequestTraces("http://nowhere", collector)
    traces.tell(REPORT, {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"})
    traces.close()
    assert collector.got == []


def test_a_collector_that_takes_nothing_holds_up_no_end() -> None:
    collector = Collector()
    traces = RequestTraces("http://nowhere", collector)
    traces.tell(REPORT, {})
    traces.close(patience=0.01)
    assert collector.got == []
    collector.lets.set()
