"""`fastpaged chat --url`: the same conversation as with a model that is loaded here, over HTTP."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.test_chat import at_a_terminal
from cli.test_chat import lines as lines
from client.scripted import DONE, HEAD, chat_event, event_bytes, scripted_server
from client.scripted import stream as scripted_stream
from server.serving import Running, running_server

from fastpaged.cli.conversation import Conversation
from fastpaged.cli.main import main
from fastpaged.client.remote import Remote
from fastpaged.server.settings import ServerSettings

OPTIONS = ["--temperature", "0", "--ignore-eos", "--max-tokens", "5"]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama, ServerSettings(served_model_names=("tiny",))) as running:
        yield running


def offline(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *texts: str) -> str:
    """What the command prints with the model loaded here."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(text + "\n" for text in texts)))
    assert main(["chat", str(model), "--isa", "scalar", "--num-threads", "1", "--num-blocks", "32", *OPTIONS]) == 0
    return capsys.readouterr().out


def test_lines_are_answered_as_by_the_model_itself(
    server: Running, tiny_llama: Path, lines: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("the cat", "and then", "/clear", "and then")
    lines(*texts)
    assert main(["chat", "--url", server.url, *OPTIONS]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == offline(tiny_llama, monkeypatch, capsys, *texts)


def test_ctrl_c_stops_the_answer_and_keeps_what_was_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "the cat", "a dog")
    stream, gone = Remote.stream, threading.Event()

    def until_gone(connection: socket.socket) -> None:
        connection.sendall(HEAD + event_bytes(chat_event("Mia")))
        connection.settimeout(60)
        if connection.recv(1) == b"":
            gone.set()

    def interrupted(remote: Remote, route: str, body: Any) -> Iterator[dict[str, Any]]:
        with contextlib.closing(stream(remote, route, body)) as events:
            yield next(events)
            if not gone.is_set():
                raise KeyboardInterrupt
            yield from events

    monkeypatch.setattr(Remote, "stream", interrupted)
    with scripted_server(until_gone, scripted_stream(chat_event("Wau"), DONE)) as server:
        real_say = Conversation.say

        def say(conversation: Conversation, text: str) -> None:
            real_say(conversation, text)
            assert gone.wait(60)  # the server knows before the next message

        monkeypatch.setattr(Conversation, "say", say)
        assert main(["chat", "--url", server.url]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Mia\nWau\n\n"
    assert "[stopped]" in captured.err
    said = [("user", "the cat"), ("assistant", "Mia"), ("user", "a dog")]
    assert [(message["role"], message["content"]) for message in server.bodies[1]["messages"]] == said


def test_an_answer_that_fails_half_way_is_told_below_it(lines: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines("the cat", "never answered")
    with scripted_server(scripted_stream(chat_event("Mi"), {"error": {"message": "it fell"}}, DONE)) as server:
        assert main(["chat", "--url", server.url]) == 1
    assert capsys.readouterr() == ("Mi\n", "fastpaged: error: the server failed the request: it fell\n")


@pytest.mark.parametrize("interactive", [False, True])
def test_what_the_server_says_against_a_message_is_one_line_and_status_1(
    interactive: bool, server: Running, lines: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if interactive:
        at_a_terminal(monkeypatch, "x" * 2000, "the cat")
    else:
        lines("x" * 2000, "never answered")
    assert main(["chat", "--url", server.url, *OPTIONS]) == (0 if interactive else 1)
    captured = capsys.readouterr()
    last = captured.err.splitlines()[-1]
    assert last.startswith("fastpaged: error: the server answered 400: This model's maximum context length is 512")
    assert captured.out.count("\n") == (2 if interactive else 0)


def test_an_unknown_model_is_refused_by_the_server(
    server: Running, lines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines("the cat")
    assert main(["chat", "--url", server.url, "--model", "huge", *OPTIONS]) == 1
    assert capsys.readouterr().err == "fastpaged: error: the server answered 404: The model `huge` does not exist.\n"


def test_no_server_is_one_line_and_status_1(lines: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    lines("the cat")
    assert main(["chat", "--url", url]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fastpaged: error: there is no server at {url}: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "got neither"),
        (["m", "--url", "u"], "got both"),
        (["m", "--model", "x"], "--model must be given with --url"),
        (["m", "--api-key", "x"], "--api-key must be given with --url"),
        (["--url", "u", "--num-threads", "2"], "--num-threads must not be given with --url"),
        (["--url", "ftp://u"], "--url must be"),
    ],
)
def test_options_of_a_model_here_and_of_a_server_do_not_mix(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
