"""`fastpaged complete`: what a server adds to a text, and nothing else, on stdout."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.scripted import DONE, refuse, scripted_server, stream, text_event
from server.serving import Running, running_server

from fastpaged import LLM, SamplingParams
from fastpaged.cli.main import main
from fastpaged.client.remote import Remote
from fastpaged.server.settings import ServerSettings

OPTIONS = ["--temperature", "0", "--ignore-eos", "--max-tokens", "9"]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama, ServerSettings(served_model_names=("tiny",))) as running:
        yield running


def typed(monkeypatch: pytest.MonkeyPatch, text: str, *, terminal: bool = False) -> None:
    stdin = io.StringIO(text)
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.parametrize("where", ["argument", "stdin"])
def test_the_text_is_the_engine_s_own(
    where: str, server: Running, tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "the cat\nsat")
    prompt = ["the cat\nsat"] if where == "argument" else []
    assert main(["complete", "--url", server.url, *OPTIONS, *prompt]) == 0
    with LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=32) as llm:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=9)
        expected = llm.generate("the cat\nsat", params)[0].outputs[0].text
    assert capsys.readouterr() == (expected.removesuffix("\n") + "\n", "")


def test_every_option_of_sampling_is_sent_and_what_is_not_given_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with scripted_server(stream(DONE), stream(DONE)) as server:
        assert main(["complete", "--url", server.url, "hi"]) == 0
        options = ["--top-p", "0.5", "--top-k", "3", "--min-p", "0.1", "--seed", "7", "--stop", "a", "--stop", "b"]
        assert main(["complete", "--url", server.url, "--model", "m", *OPTIONS, *options, "hi"]) == 0
    assert capsys.readouterr() == ("", "")
    assert server.bodies[0] == {"model": "tiny", "prompt": "hi", "max_tokens": 256, "stream": True}
    assert server.bodies[1] == {
        "model": "m", "prompt": "hi", "max_tokens": 9, "temperature": 0, "ignore_eos": True, "top_p": 0.5, "top_k": 3,
        "min_p": 0.1, "seed": 7, "stop": ["a", "b"], "stream": True,
    }  # fmt: skip


def test_the_key_is_taken_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTPAGED_API_KEY", "from the environment")
    with scripted_server(stream(DONE), stream(DONE)) as server:
        assert main(["complete", "--url", server.url, "--model", "m", "hi"]) == 0
        assert main(["complete", "--url", server.url, "--model", "m", "--api-key", "given", "hi"]) == 0
    keys = [line for head in server.heads for line in head.splitlines() if line.lower().startswith("authorization")]
    assert [key.partition("Bearer ")[2] for key in keys] == ["from the environment", "given"]


def test_a_refusal_and_an_answer_that_fails_are_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    failing = stream(text_event("so far"), {"error": {"message": "it fell"}}, DONE)
    with scripted_server(refuse(503, '{"error": {"message": "too many"}}'), failing) as server:
        assert main(["complete", "--url", server.url, "hi"]) == 1
        assert capsys.readouterr() == ("", "fastpaged: error: the server answered 503: too many\n")
        assert main(["complete", "--url", server.url, "hi"]) == 1
        assert capsys.readouterr() == ("so far\n", "fastpaged: error: the server failed the request: it fell\n")


def test_ctrl_c_ends_the_answer_and_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def interrupted(remote: Remote, route: str, body: Any) -> Iterator[dict[str, Any]]:
        try:
            yield text_event("so far")
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    monkeypatch.setattr(Remote, "stream", interrupted)
    assert main(["complete", "--url", "http://a", "--model", "m", "hi"]) == 130
    assert capsys.readouterr().out == "so far\n"
    assert closed


@pytest.mark.parametrize(("text", "terminal", "message"), [("", False, "must not be empty"), ("a", True, "stdin")])
def test_without_a_prompt_nothing_is_asked(
    text: str, terminal: bool, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, text, terminal=terminal)
    assert main(["complete", "--url", "http://localhost:1", "--model", "m"]) == 2
    assert message in capsys.readouterr().err
