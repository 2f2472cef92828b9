"""`fastpaged run-batch` on the tiny model."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from fastpaged import LLM, SamplingParams
from fastpaged.cli.main import main
from fastpaged.errors import EngineDeadError
from fastpaged.server.batch_file import BatchFile

OPTIONS = ["--isa", "scalar", "--num-threads", "1", "--num-blocks", "64", "--no-packed-cache"]


def completion(name: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"max_tokens": 6, "seed": 1, **body}}


def write(path: Path, lines: list[Any]) -> str:
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def read(path: Path) -> dict[str, Any]:
    rows = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    assert len({row["custom_id"] for row in rows}) == len(rows)
    return {row["custom_id"]: row for row in rows}


def run(model: Path, source: str, target: Path, *options: str) -> int:
    return main(["run-batch", source, str(target), "--model", str(model), *OPTIONS, *options])


def test_each_request_has_the_answer_that_it_has_alone(tiny_llama: Path, tmp_path: Path) -> None:
    prompts = [f"The cat {number}" for number in range(20)]
    chat = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions"}
    lines: list[Any] = [completion(prompt, prompt=prompt, n=2) for prompt in prompts]
    messages = [{"role": "user", "content": "hi"}]
    lines.append(chat | {"body": {"messages": messages, "max_tokens": 5, "seed": 3}})
    target = tmp_path / "out.jsonl"
    assert run(tiny_llama, write(tmp_path / "in.jsonl", lines), target) == 0
    answers = read(target)
    with LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=64) as llm:
        expected = llm.generate(prompts, SamplingParams(n=2, max_tokens=6, seed=1))
        [said] = llm.chat(messages, SamplingParams(max_tokens=5, seed=3))
    for prompt, output in zip(prompts, expected, strict=True):
        response = answers[prompt]["response"]
        assert response["status_code"] == 200
        assert response["request_id"] == response["body"]["id"]
        assert [choice["text"] for choice in response["body"]["choices"]] == [one.text for one in output.outputs]
    message = answers["chat"]["response"]["body"]["choices"][0]["message"]
    assert message["content"] == said.outputs[0].text


def test_bad_lines_are_errors_in_the_output_and_not_its_end(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[Any] = [
        completion("good", prompt="x"),
        "{no json",
        {"no": "id"},
        completion("url", prompt="x") | {"url": "/v1/embeddings"},
        completion("body", prompt="x", temperature=9.0),
        completion("stream", prompt="x", stream=True),
    ]
    target = tmp_path / "out.jsonl"
    assert run(tiny_llama, write(tmp_path / "in.jsonl", lines), target) == 1
    answers = read(target)
    assert answers["good"]["response"]["status_code"] == 200
    assert answers["body"]["response"]["status_code"] == 400
    assert "temperature" in answers["body"]["response"]["body"]["error"]["message"]
    for name in ("line-2", "line-3", "url", "stream"):
        assert answers[name]["response"] is None
        assert answers[name]["error"]["code"] == "invalid_line"
    assert "1 answered, 5 failed" in capsys.readouterr().err


def test_what_was_answered_is_not_asked_again_and_half_a_line_is(tiny_llama: Path, tmp_path: Path) -> None:
    lines: list[Any] = [completion(f"r{number}", prompt=f"The {number}") for number in range(6)]
    source = write(tmp_path / "in.jsonl", lines)
    whole = tmp_path / "whole.jsonl"
    assert run(tiny_llama, source, whole) == 0
    rows = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(rows[:3]) + rows[3][:40], encoding="utf-8")
    assert run(tiny_llama, source, cut) == 0
    assert cut.read_text(encoding="utf-8").startswith("".join(rows[:3]))
    texts = {name: row["response"]["body"]["choices"] for name, row in read(whole).items()}
    assert {name: row["response"]["body"]["choices"] for name, row in read(cut).items()} == texts
    before = cut.read_bytes()
    assert run(tiny_llama, source, cut) == 0
    assert cut.read_bytes() == before


def test_files_that_are_none_are_the_user_s_to_mend(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = write(tmp_path / "twice.jsonl", [completion("a", prompt="x"), completion("a", prompt="y")])
    good = write(tmp_path / "good.jsonl", [completion("a", prompt="x")])
    other = tmp_path / "other.txt"
    other.write_text("something else\n", encoding="utf-8")
    for source, target, words in (
        (twice, tmp_path / "out.jsonl", "custom_id must be another in every line"),
        (str(tmp_path / "none.jsonl"), tmp_path / "out.jsonl", "the input must be a file"),
        (good, other, "the output must be a new file"),
    ):
        assert run(tiny_llama, source, target) == 2
        assert words in capsys.readouterr().err
    assert other.read_text(encoding="utf-8") == "something else\n"


def test_the_files_may_be_options(tiny_llama: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [completion("a", prompt="x")])
    target = tmp_path / "out.jsonl"
    assert main(["run-batch", "-i", source, "-o", str(target), "--model", str(tiny_llama), *OPTIONS]) == 0
    assert list(read(target)) == ["a"]


def test_whatever_a_line_holds_its_neighbours_are_answered(tiny_llama: Path, tmp_path: Path) -> None:
    deep = '{"custom_id": "deep", "method": "POST", "url": "/v1/completions", "body": {"prompt": ' + "[" * 50_000
    rows = [
        json.dumps(completion("separators", prompt="a\u2028b\x85c"), ensure_ascii=False).encode(),
        b'{"custom_id": "\xff"}',
        json.dumps(completion("nan", prompt="x", temperature=float("nan"))).encode(),
        json.dumps(completion("half", prompt="\ud800")).encode(),
        deep.encode(),
        json.dumps(completion("line-7", prompt="x")).encode() + b"\r",
        b"7",
        json.dumps(completion("get", prompt="x") | {"method": "GET"}).encode(),
    ]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + b"\n".join(rows))
    target = tmp_path / "out.jsonl"
    assert run(tiny_llama, str(source), target) == 1
    answers = read(target)
    statuses = {name: row["response"] and row["response"]["status_code"] for name, row in answers.items()}
    assert statuses == {
        "separators": 200, "line-2": None, "nan": 400, "half": 400, "line-5": None, "line-7": 200, "line-7'": None,
        "get": None,
    }  # fmt: skip
    assert answers["get"]["error"]["message"] == "method must be 'POST', got 'GET'"


def test_what_failed_before_counts_as_failed(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [completion("a", prompt="x"), completion("b", prompt="x", temperature=9.0)])
    target = tmp_path / "out.jsonl"
    assert run(tiny_llama, source, target) == 1
    before = target.read_bytes()
    assert run(tiny_llama, source, target) == 1
    assert target.read_bytes() == before
    assert capsys.readouterr().err.count("1 answered, 1 failed: ") == 2


def test_no_file_is_harmed_by_being_named_as_the_output(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(completion("a", prompt="x")), encoding="utf-8")  # the last line has no end
    other = tmp_path / "other.txt"
    other.write_text("something else", encoding="utf-8")
    for target, words in (
        (source, "the output must be another file than the input"),
        (other, "the output must be a new file"),
        (tmp_path / "no" / "out.jsonl", "No such file or directory"),
    ):
        assert run(tmp_path / "no model", str(source), target) == 2  # refused before a model is looked for
        assert words in capsys.readouterr().err
    assert json.loads(source.read_text(encoding="utf-8"))["custom_id"] == "a"
    assert other.read_text(encoding="utf-8") == "something else"


def test_a_short_queue_refuses_nothing_in_the_end(tiny_llama: Path, tmp_path: Path) -> None:
    lines: list[Any] = [completion(f"r{number}", prompt=f"The {number}") for number in range(12)]
    target = tmp_path / "out.jsonl"
    options = ["--max-num-seqs", "1", "--max-num-queued-requests", "1", "--at-once", "12"]
    assert run(tiny_llama, write(tmp_path / "in.jsonl", lines), target, *options) == 0
    assert len(read(target)) == 12


def test_ctrl_c_leaves_whole_lines_and_the_rest_for_later(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[Any] = [completion(f"r{number}", prompt=f"The {number}") for number in range(6)]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    answer_all = BatchFile.run

    async def interrupted(batch: BatchFile, app: FastAPI, at_once: int, on_answer: Callable[[], None]) -> None:
        def answered() -> None:
            on_answer()
            if len(batch.pending) == 3:
                signal.raise_signal(signal.SIGINT)

        await answer_all(batch, app, at_once, answered)

    with monkeypatch.context() as patched:
        patched.setattr(BatchFile, "run", interrupted)
        assert run(tiny_llama, source, target, "--at-once", "1") == 130
    num_answered = len(read(target))
    assert num_answered in (3, 4)  # what was being asked may have come to its end
    assert f"{num_answered} answered, 0 failed, {6 - num_answered} left: run it" in capsys.readouterr().err
    assert run(tiny_llama, source, target) == 0
    assert len(read(target)) == 6


def test_an_engine_that_dies_leaves_its_requests_unanswered(tmp_path: Path) -> None:
    app = FastAPI()
    app.state.service = SimpleNamespace(engine=SimpleNamespace(dead_error=None))

    @app.post("/v1/completions")
    def answer(body: dict[str, Any]) -> JSONResponse:
        if body["prompt"] == "2":
            app.state.service.engine.dead_error = EngineDeadError("the engine died")
        return JSONResponse({}, 500 if app.state.service.engine.dead_error else 200)

    source = write(tmp_path / "in.jsonl", [completion(f"r{number}", prompt=f"{number}") for number in range(5)])
    batch = BatchFile(source, str(tmp_path / "out.jsonl"))
    with pytest.raises(EngineDeadError):
        asyncio.run(batch.run(app, 1, lambda: None))
    assert list(read(batch.target)) == ["r0", "r1"]
    assert [line.custom_id for line in BatchFile(source, str(batch.target)).pending] == ["r2", "r3", "r4"]
