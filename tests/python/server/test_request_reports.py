"""What is told of each request when it has ended: a line in the log, a span."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server.serving import Running, running_server

from fastpaged.server.otel_traces import RequestTraces

ASK = {"prompt": list(range(3, 20)), "max_tokens": 5, "ignore_eos": True, "seed": 1}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "fastpaged.requests"]


def until_idle(server: Running) -> None:
    while server.service.num_in_flight or server.engine.progress().num_unfinished:
        server.client.get("/load")


def test_each_request_is_a_line_of_json_without_its_text(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastpaged.requests")
    with running_server(tiny_llama) as server:
        server.client.post("/v1/completions", json=ASK | {"request_id": "first"}).raise_for_status()
        server.client.post("/v1/completions", json=ASK | {"n": 2, "stream": True}).raise_for_status()
        server.client.post("/v1/completions", json=ASK | {"prompt": [[3, 4], [5, 6]]}).raise_for_status()
        server.client.post("/v1/completions", json=ASK | {"prompt": [10**6]})
        with server.client.stream("POST", "/v1/completions", json=ASK | {"max_tokens": 400, "stream": True}) as stream:
            next(stream.iter_lines())
        until_idle(server)
    told = lines(caplog)
    assert [line["outcome"] for line in told] == ["length", "length", "length", "length", "refused", "gone"]
    first, second = told[:2]
    assert first["id"] == "cmpl-first"
    assert (first["prompt_tokens"], first["cached_tokens"], first["generation_tokens"]) == (17, 0, 5)
    assert (second["cached_tokens"], second["generation_tokens"], second["n"], second["stream"]) == (16, 10, 2, True)
    assert first["ttft_s"] == pytest.approx(first["queue_s"] + first["prefill_s"], abs=1e-5)
    assert not any("text" in name or name == "prompt" for line in told for name in line)
    assert told[2]["id"].removesuffix(" 0") == told[3]["id"].removesuffix(" 1")


def test_each_request_is_a_span_under_its_callers(tiny_llama: Path) -> None:
    exporter = InMemorySpanExporter()
    traces = RequestTraces("http://nowhere", exporter)
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with running_server(tiny_llama) as server:
        server.service.readers.append(traces)
        headers = {"traceparent": f"00-{trace_id}-{parent}-01"}
        server.client.post("/v1/completions", json=ASK, headers=headers).raise_for_status()
        until_idle(server)
    traces.close()
    [span] = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == trace_id
    assert f"{span.parent.span_id:016x}" == parent
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.prompt_tokens"] == 17
    assert span.attributes["gen_ai.usage.completion_tokens"] == 5
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time > span.start_time
