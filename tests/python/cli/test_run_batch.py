"""`fastpaged run-batch` on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastpaged import LLM, SamplingParams
from fastpaged.cli.main import main

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
