"""`fastpaged bench serve`: against the tiny model's server, and against one that says what a test wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.scripted import DONE, refuse, scripted_server, stream, text_event
from server.serving import Running, running_server

from fastpaged.cli import bench_serve
from fastpaged.cli.bench_serve_options import Options
from fastpaged.cli.main import main
from fastpaged.client.load import run_load
from fastpaged.server.settings import ServerSettings

RANDOM = ["--random-input-len", "6", "--random-output-len", "4", "--random-vocab-size", "256", "--ignore-eos"]

FIELDS = (
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
    "queue_times", "generated_texts", "errors",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama, ServerSettings(served_model_names=("tiny",))) as running:
        yield running


def bench(url: str, *options: str) -> int:
    return main(["bench", "serve", "--url", url, *options])


def result_of(url: str, tmp_path: Path, *options: str) -> Any:
    path = tmp_path / "result.json"
    assert bench(url, *options, "--save-result", str(path)) == 0
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_random_requests_are_answered_and_counted_by_either_route(
    endpoint: str, server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of(server.url, tmp_path, *RANDOM, "--num-prompts", "5", "--endpoint", endpoint, "--save-detailed")
    assert (result["completed"], result["failed"], result["num_prompts"]) == (5, 0, 5)
    assert result["total_output_tokens"] == 20
    assert result["output_lens"] == [4] * 5
    if endpoint == "completions":
        assert result["total_input_tokens"] == 30
    assert result["endpoint_type"] == {"completions": "openai", "chat": "openai-chat"}[endpoint]
    assert (result["model_id"], result["request_rate"]) == ("tiny", "inf")
    out = capsys.readouterr().out
    assert "Successful requests:                    5\n" in out
    assert "Total generated tokens:                 20\n" in out


def test_the_result_has_the_fields_that_people_s_scripts_read(tmp_path: Path) -> None:
    options = ["--metric-percentiles", "50,99", "--percentile-metrics", "ttft,tpot,itl,e2el", "--label", "mine"]
    answer = stream(text_event("a"), text_event("b", "stop"), DONE)
    with scripted_server(answer, answer) as fake:
        options += [*RANDOM, "--num-prompts", "2", "--save-detailed", "--request-rate", "999"]
        result = result_of(fake.url, tmp_path, *options)
    figures = [
        f"{figure}_{metric}_ms"
        for figure in ("mean", "median", "std", "p50", "p99")
        for metric in ("ttft", "tpot", "itl", "e2el")
    ]
    assert {*FIELDS, *figures} <= set(result)
    assert (result["label"], result["request_rate"]) == ("mine", 999)
    assert all(isinstance(result[name], float) for name in figures)


def test_several_rates_are_several_results_with_prompts_of_their_own_and_one_picture(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def noted(requests: Any, *arguments: Any, **more: Any) -> Any:
        seen.append([str(request.prompt) for request in requests])
        return await run_load(requests, *arguments, **more)

    monkeypatch.setattr("fastpaged.client.load.run_load", noted)
    picture = tmp_path / "a.png"
    rates = ["--request-rate", "500,1000,inf", "--num-prompts", "3", "--percentile-metrics", "e2el"]
    results = result_of(server.url, tmp_path, *RANDOM, *rates, "--plot", str(picture))
    assert [result["request_rate"] for result in results] == [500, 1000, "inf"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [len(prompts) for prompts in seen] == [3, 3, 3]
    assert len({prompt for prompts in seen for prompt in prompts}) == 9


def test_files_are_sent_in_their_order_and_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "out": 3}\n{"prompt": [5, 6], "out": 4}\n"b"\n', encoding="utf-8")
    answer = stream(text_event("x", "stop"), DONE)
    with scripted_server(answer, answer, answer) as fake:
        options = ["--dataset", str(file), "--max-concurrency", "1", "--extra-body", '{"top_k": 5}']
        assert bench(fake.url, *options, "--temperature", "0.5") == 0
    assert [(body["prompt"], body["max_tokens"]) for body in fake.bodies] == [("a", 3), ([5, 6], 4), ("b", 128)]
    assert all((body["top_k"], body["temperature"], body["model"]) == (5, 0.5, "tiny") for body in fake.bodies)
    assert not any("ignore_eos" in body for body in fake.bodies)


def test_a_server_that_counts_no_tokens_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    events = [text_event("x"), text_event("y", "stop")]
    with scripted_server(stream(*events, DONE), stream(*events, usage, DONE)) as fake:
        for num_output, num_input, warned in ((2, 6, True), (5, 7, False)):
            result = result_of(fake.url, tmp_path, *RANDOM, "--num-prompts", "1")
            assert (result["total_output_tokens"], result["total_input_tokens"]) == (num_output, num_input)
            assert ("the server counts no tokens" in capsys.readouterr().err) == warned


def test_warming_up_is_no_part_of_the_load(tmp_path: Path) -> None:
    answer = stream(text_event("x", "stop"), DONE)
    with scripted_server(*[answer] * 5) as fake:
        options = [
            *RANDOM,
            "--random-output-len",
            "99",
            "--num-prompts",
            "2",
            "--warmup",
            "3",
            "--max-concurrency",
            "1",
        ]
        result = result_of(fake.url, tmp_path, *options)
    assert result["completed"] == 2
    assert [body["max_tokens"] for body in fake.bodies] == [8, 8, 8, 99, 99]
    assert len({str(body["prompt"]) for body in fake.bodies}) == 5


def test_failures_are_told_with_their_reasons_and_the_status_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = refuse(503, '{"error": {"message": "full"}}')
    with scripted_server(full, stream(text_event("x", "stop"), DONE), full) as fake:
        path = tmp_path / "a.json"
        options = [*RANDOM, "--num-prompts", "3", "--max-concurrency", "1", "--save-result", str(path)]
        assert bench(fake.url, *options) == 1
    assert "2 x the server answered 503: full\n" in capsys.readouterr().out
    result = json.loads(path.read_text(encoding="utf-8"))
    assert (result["completed"], result["failed"]) == (1, 2)
    assert result["failures"] == {"the server answered 503: full": 2}


def test_a_trace_comes_at_its_own_times_or_at_a_rate(server: Running, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{7 + index / 100},{4 + index},2" for index in range(5)] + ["9,900,900"]  # the last is too long to serve
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]), encoding="utf-8")
    options = ["--dataset", f"trace:{trace}", "--random-vocab-size", "256", "--ignore-eos", "--save-detailed"]
    result = result_of(server.url, tmp_path, *options)
    assert result["request_rate"] == pytest.approx(100)
    assert result["input_lens"] == [4, 5, 6, 7, 8]
    assert result_of(server.url, tmp_path, *options, "--request-rate", "200")["request_rate"] == 200
    assert result_of(server.url, tmp_path, *options, "--request-rate", "inf")["request_rate"] == "inf"


def test_arrivals_of_a_trace_at_a_rate_are_its_own_stretched() -> None:
    from fastpaged.client.bench_request import BenchRequest

    requests = [BenchRequest([1], 1, 1, time) for time in (3.0, 4.0, 7.0)]
    options = Options()
    assert bench_serve._arrivals(options, None, requests) == [0, 1, 4]
    assert bench_serve._arrivals(options, 1.0, requests) == [0, 0.5, 2]
    assert bench_serve._arrivals(options, float("inf"), requests) == [0, 0, 0]


def test_the_same_prompts_come_at_every_rate_only_if_a_file_has_no_others(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([f"prompt {index}" for index in range(5)]), encoding="utf-8")

    def prompts(num_prompts: int | None, rates: int) -> list[list[str]]:
        options = Options(dataset=str(file), num_prompts=num_prompts, rates=[1.0] * rates)
        return [[str(request.prompt).removeprefix("prompt ") for request in load] for load in options.loads()]

    assert prompts(2, 2) == [["0", "1"], ["2", "3"]]
    assert prompts(2, 3) == [["0", "1"]] * 3
    assert prompts(None, 2) == [["0", "1", "2", "3", "4"]] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--request-rate", "0"], "--request-rate must be numbers above 0"),
        (["--request-rate", "1,x"], "got 'x'"),
        (["--request-rate", "nan"], "got 'nan'"),
        (["--burstiness", "0"], "--burstiness must be above 0"),
        (["--num-prompts", "0"], "--num-prompts must be at least 1, got 0"),
        (["--max-concurrency", "0"], "--max-concurrency must be at least 1, got 0"),
        (["--warmup", "-1"], "--warmup must be at least 0, got -1"),
        (["--percentile-metrics", "ttft,x"], "--percentile-metrics must be of ttft, tpot, itl, e2el"),
        (["--metric-percentiles", "101"], "--metric-percentiles must be numbers above 0 and up to 100, got '101'"),
        (["--goodput", "x:1"], "--goodput must be NAME:MS"),
        (["--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["--extra-body", "{"], "--extra-body must be a JSON object"),
        (["--save-result", "/absent/a.json"], "--save-result: /absent/a.json cannot be written"),
        (["--plot", "/absent/a.png"], "--plot: /absent/a.png cannot be written"),
    ],
)
def test_what_cannot_be_is_said_before_a_server_is_asked(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("http://127.0.0.1:1", *options) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_datasets_that_do_not_do_are_refused(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text('[{"prompt": [5, 6], "out": 4}]', encoding="utf-8")
    for options, words in (
        (["--endpoint", "chat"], "--endpoint must be completions for prompts of token ids"),
        (["--num-prompts", "2"], "--num-prompts must be at most 1 for this dataset, got 2"),
        (["--max-model-len", "5"], "has no request within the server's limit of 5 tokens"),
    ):
        assert bench(server.url, "--dataset", str(ids), *options) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "options", "what"), [("aiohttp", [], "bench serve"), ("matplotlib", ["--plot", "a.png"], "--plot")]
)
def test_a_package_that_is_not_installed_is_named_with_how_to_have_it(
    package: str, options: list[str], what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert bench("http://127.0.0.1:1", *options) == 2
    expected = f"fastpaged: error: {what} needs {package}: pip install 'fastpaged[bench]'\n"
    assert capsys.readouterr().err == expected


def test_no_server_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:1") == 1
    error = capsys.readouterr().err
    assert error.startswith("fastpaged: error: there is no server at http://127.0.0.1:1: ")
    assert error.count("\n") == 1
