"""/v1/completions in events: the same answer, in pieces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server.completions import PATH, choices, events, in_process, post, reader_keeps_up
from server.serving import Running, running_server

from fastpaged import RequestOutput
from fastpaged.server.settings import ServerSettings

PROMPT = "The cat is on the"
ASKED: dict[str, Any] = {"prompt": ["The cat", "of the mat", "in"], "n": 2, "seed": 11, "max_tokens": 20}
# A character in UTF-8 takes two to four of these.
BYTES = (b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f", b"\x98", b"\x80", b"e")


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


def test_pieces_of_several_prompts_and_choices_add_up_to_the_whole_answers(server: Running) -> None:
    whole = post(server, return_token_ids=True, **ASKED)
    stream = events(server, return_token_ids=True, **ASKED)
    added = choices(stream)
    assert sorted(added) == list(range(6))
    for choice in whole["choices"]:
        for name in ("text", "token_ids", "finish_reason", "stop_reason", "seed"):
            assert added[choice["index"]][name] == choice[name]
    told = [piece["index"] for event in stream for piece in event["choices"] if "prompt_token_ids" in piece]
    assert sorted(told) == list(range(6))  # once for each
    for name in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({event[name] for event in stream}) == 1


def test_a_reader_who_keeps_up_has_an_event_for_each_token_of_each_choice(server: Running) -> None:
    with reader_keeps_up(server):
        stream = events(server, prompt=PROMPT, n=3, seed=5, max_tokens=16, ignore_eos=True, return_token_ids=True)
    pieces = [piece for event in stream for piece in event["choices"]]
    assert [piece["index"] for piece in pieces] == [0, 1, 2] * 16
    assert all(len(piece["token_ids"]) == 1 for piece in pieces)
    expected = in_process(server, PROMPT, n=3, seed=5, max_tokens=16, ignore_eos=True)
    assert [choice["text"] for choice in choices(stream).values()] == [answer.text for answer in expected.outputs]


def test_the_usage_comes_last_where_somebody_wants_it(server: Running) -> None:
    usage = post(server, **ASKED)["usage"]
    stream = events(server, stream_options={"include_usage": True}, **ASKED)
    assert stream[-1]["choices"] == []
    cached = stream[-1]["usage"]["prompt_tokens_details"]
    assert stream[-1]["usage"] == usage | {"prompt_tokens_details": cached}
    assert all(event["usage"] is None for event in stream[:-1])
    plain = events(server, **ASKED)
    assert all(event["choices"] and "usage" not in event for event in plain)


def test_usage_in_every_event_counts_what_has_come(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counted = 0
    for event in events(server, stream_options=options, return_token_ids=True, **ASKED):
        if event["choices"]:
            counted += sum(len(piece["token_ids"]) for piece in event["choices"])
        assert event["usage"]["completion_tokens"] >= counted  # an output's choices are told one by one
        assert event["usage"]["total_tokens"] == event["usage"]["prompt_tokens"] + event["usage"]["completion_tokens"]
    assert event["usage"]["completion_tokens"] == counted


@pytest.mark.parametrize("seed", range(8))
def test_no_piece_holds_a_part_of_a_character(server: Running, seed: int) -> None:
    tokenizer = server.engine.get_tokenizer()
    ids = [next(one for one in range(300) if tokenizer.token_bytes(one) == byte) for byte in BYTES]
    asked: dict[str, Any] = {"seed": seed, "temperature": 2, "max_tokens": 80, "allowed_token_ids": ids}
    [expected] = in_process(server, PROMPT, **asked).outputs
    with reader_keeps_up(server):
        stream = events(server, prompt=PROMPT, **asked)
    assert len(stream) == len(expected.token_ids)
    assert choices(stream)[0]["text"] == expected.text
    assert any(ord(letter) > 127 for letter in expected.text)
    # A byte that cannot be of a character is known for it when the next comes; what is told is never taken back.
    so_far = ""
    for event in stream:
        so_far += event["choices"][0]["text"]
        assert expected.text.startswith(so_far)


def test_a_server_may_state_the_usage_unasked_and_show_that_it_lives(tiny_llama: Path) -> None:
    settings = ServerSettings(force_include_usage=True, sse_keep_alive_interval=0.001)
    with running_server(tiny_llama, settings) as server:
        go_on = threading.Event()
        real = server.engine.generate

        async def slow(*args: Any, **more: Any) -> AsyncGenerator[RequestOutput, None]:
            async for output in real(*args, **more):
                await asyncio.to_thread(go_on.wait)
                yield output

        server.engine.generate = slow  # type: ignore[method-assign]
        lines = []
        with server.client.stream("POST", PATH, json={"prompt": PROMPT, "max_tokens": 3, "stream": True}) as response:
            for line in response.iter_lines():
                lines.append(line)
                if line.startswith(":"):
                    go_on.set()
        assert lines[0] == ": keep-alive"
        assert lines[-2] == "data: [DONE]"
        assert '"choices":[],"usage":{"prompt_tokens":' in lines[-4]


def failing(server: Running, num_good: int) -> Any:
    """generate() whose request's own computation fails behind so many outputs."""
    real = server.engine.generate

    async def generate(*args: Any, **more: Any) -> AsyncGenerator[RequestOutput, None]:
        left = num_good
        async with aclosing(real(*args, **more)) as outputs:
            async for output in outputs:
                if left == 0:
                    lost = [replace(answer, finish_reason="error") for answer in output.outputs]
                    yield replace(output, finished=True, outputs=lost)
                    return
                left -= 1
                yield output

    return generate


def test_a_request_whose_computation_failed_is_500(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.engine, "generate", failing(server, 0))
    for stream in (False, True):
        response = server.client.post(PATH, json={"prompt": PROMPT, "stream": stream})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "InternalServerError"


def test_a_failure_in_the_middle_is_an_event_before_the_end(server: Running) -> None:
    with reader_keeps_up(server), pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.engine, "generate", failing(server, 2))
        *begun, last = events(server, prompt=PROMPT, ignore_eos=True)
    assert len(begun) == 2
    assert last["error"]["code"] == 500


def test_a_client_that_leaves_takes_all_its_prompts_along(server: Running) -> None:
    has_left, num_planned = threading.Event(), 0

    def planned() -> None:
        nonlocal num_planned
        num_planned += 1
        if num_planned > 5:
            assert has_left.wait(60)

    server.engine._thread.engine.on_planned = planned
    body = {**ASKED, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()  # to let go of it is to leave
        next(lines)
        assert server.service.num_in_flight == 1
    while server.service.num_in_flight > 0:
        pass  # the event loop sees that it has left, while the engine stands still in its sixth step at last
    has_left.set()
    while server.engine.progress().num_unfinished > 0:
        pass
    server.engine._thread.engine.on_planned = None
    assert num_planned <= 6
    assert post(server, **ASKED)["usage"]["completion_tokens"] > 0
