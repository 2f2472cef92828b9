"""GET /metrics, read as Prometheus does."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.serving import running_server
from server.step_gate import RawClient, StepGate, inner, until

from fastpaged import _core
from fastpaged.server.settings import ServerSettings

USUAL = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc engine_sleep_state
lora_requests_info cache_config_info num_preemptions_total prompt_tokens_total prompt_tokens_by_source_total
prompt_tokens_cached_total prompt_tokens_cached_by_source_total generation_tokens_total
prefix_cache_queries_total prefix_cache_hits_total external_prefix_cache_queries_total
external_prefix_cache_hits_total request_success_total admission_rejections_total corrupted_requests_total
time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket
request_time_per_output_token_seconds_bucket e2e_request_latency_seconds_bucket
request_queue_time_seconds_bucket request_prefill_time_seconds_bucket request_decode_time_seconds_bucket
request_inference_time_seconds_bucket request_prompt_tokens_bucket request_generation_tokens_bucket
request_max_num_generation_tokens_bucket request_params_n_bucket request_params_max_tokens_bucket
request_prefill_kv_computed_tokens_bucket request_num_preemptions_bucket iteration_tokens_total_bucket
"""


def read(client: httpx.Client) -> dict[str, float]:
    """Samples by name, and by what tells them apart beside model and engine."""
    samples = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            rest = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            samples[sample.name + "".join(f"/{value}" for value in rest.values())] = sample.value
    return samples


def test_a_scripted_workload_gives_exact_counters(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        begin = read(server.client)
        ask = {"prompt": list(range(3, 20)), "max_tokens": 5, "ignore_eos": True, "seed": 1}
        server.client.post("/v1/completions", json=ask).raise_for_status()
        server.client.post("/v1/completions", json=ask | {"n": 3}).raise_for_status()
        server.client.post("/v1/completions", json=ask | {"stream": True}).raise_for_status()
        server.client.post("/v1/completions", json=ask | {"n": 0})
        end = read(server.client)
    moved = {name: end[name] - begin.get(name, 0) for name in end}
    assert moved["fastpaged:requests_started_total"] == 3
    assert moved["fastpaged:request_success_total/length"] == 3
    assert moved["fastpaged:generation_tokens_total"] == 5 * 5
    assert moved["fastpaged:prompt_tokens_total"] == 3 * 17
    assert moved["fastpaged:prompt_tokens_by_source_total/computed"] == 17 + 1 + 1
    assert moved["fastpaged:prompt_tokens_cached_total"] == 2 * 16
    assert moved["fastpaged:time_to_first_token_seconds_count"] == 3
    assert moved["fastpaged:inter_token_latency_seconds_count"] == 3 * 4
    assert moved["fastpaged:request_params_n_sum"] == 5
    assert moved["fastpaged:request_prompt_tokens_sum"] == 3 * 17
    assert moved["fastpaged:request_generation_tokens_sum"] == 25
    assert moved["fastpaged:iteration_tokens_total_sum"] == 19 + 5 * 5 - 5
    assert moved["fastpaged:http_requests_total/\u002fv1/completions/200"] == 3
    assert moved["fastpaged:http_requests_total/\u002fv1/completions/400"] == 1
    assert end["fastpaged:num_requests_running"] == end["fastpaged:num_requests_waiting"] == 0
    slots = [value for name, value in end.items() if name.startswith("fastpaged:kv_slots/device")]
    assert sum(slots) == 64 * 8


def test_the_other_engines_names_are_there_when_asked_for(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(metrics_compat="vllm")) as server:
        names = set(read(server.client))
    ours = {name.removeprefix("fastpaged:") for name in names if name.startswith("fastpaged:")}
    theirs = {name.removeprefix("vllm:") for name in names if name.startswith("vllm:")}
    assert "num_requests_running" in theirs
    assert theirs < ours


def test_what_runs_is_seen_while_it_runs(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        now = [10**9]
        inner(server).clock.source = lambda: now[0]
        gate = StepGate(server)
        client = RawClient(server.url, {"prompt": [5, 6], "max_tokens": 30, "ignore_eos": True})
        until(lambda: inner(server).has_request(next(iter(server.service.calls), "")))
        now[0] += 7 * 10**9
        seen = read(server.client)
        assert seen["fastpaged:calls_in_flight"] == 1
        assert seen["fastpaged:seconds_since_progress"] == 7.0
        gate.open()
        client.read_until(b'"usage"')
        client.leave()


def test_every_usual_name_is_there(tiny_llama: Path) -> None:
    usual = set(USUAL.split())
    with running_server(tiny_llama, ServerSettings(metrics_compat="vllm")) as server:
        families = list(text_string_to_metric_families(server.client.get("/metrics").text))
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("vllm:")]
    assert {f"vllm:{name}" for name in usual} <= {sample.name for sample in samples}
    assert all({"model_name", "engine"} <= set(sample.labels) for sample in samples)


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=values",
        "text/plain;version=1.0.0;escaping=underscores",
        "application/openmetrics-text;version=new",
        "image/png",
    ],
)
def test_names_are_the_same_whatever_is_accepted(tiny_llama: Path, accept: str) -> None:
    with running_server(tiny_llama) as server:
        answer = server.client.get("/metrics", headers={"Accept": accept})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "\nfastpaged:steps_total{" in answer.text


def test_a_scrape_waits_for_no_step(tiny_llama: Path) -> None:
    """Nor for its end: the gate holds the step until the scrape has been answered."""
    with running_server(tiny_llama) as server:
        before = read(server.client)
        gate = StepGate(server)
        client = RawClient(server.url, {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True})
        until(lambda: read(server.client)["fastpaged:num_requests_waiting"] == 1)
        during = read(server.client)
        gate.open()
        client.read_until(b'"usage"')
        after = read(server.client)
        client.leave()
    slots = [name for name in before if name.startswith("fastpaged:kv_slots/")]
    assert slots
    assert all(during[name] == before[name] for name in slots)
    assert during["fastpaged:requests_started_total"] == 1
    assert during["fastpaged:generation_tokens_total"] == 0
    assert after["fastpaged:generation_tokens_total"] == 3


def test_the_process_and_what_it_runs_are_told(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        text = server.client.get("/metrics").text
    assert "\nprocess_resident_memory_bytes " in text
    [build] = [line for line in text.splitlines() if line.startswith("fastpaged:build_info{")]
    assert f'version="{_core.__version__}"' in build
