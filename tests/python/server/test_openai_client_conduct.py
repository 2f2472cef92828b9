"""How the official client of OpenAI gets along with the server: when it asks again, gives up, or leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from server.serving import Running, running_server
from server.step_gate import StepGate, until

MESSAGES: Any = [{"role": "user", "content": "The cat"}]
ENDLESS: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


class Watched:
    """What passed between a client and the server. on_answer: called with each answer."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.connections: set[Any] = set()
        self.on_answer: Callable[[], None] = lambda: None

    def note(self, response: Any) -> None:
        self.statuses.append(response.status_code)
        self.connections.add(response.extensions["network_stream"].get_extra_info("client_addr"))
        self.on_answer()


def client_of(server: Running, watched: Watched, **more: Any) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(event_hooks={"response": [watched.note]})
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", http_client=http, **{"timeout": 60} | more)


def test_it_asks_again_after_as_long_as_a_503_says(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("openai._base_client.time", SimpleNamespace(sleep=slept.append, time=time.time))
    watched = Watched()

    def opens() -> None:
        server.service.is_draining = False

    watched.on_answer = opens
    with client_of(server, watched, max_retries=2) as client:
        server.service.is_draining = True
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert watched.statuses == [503, 200]
    assert slept == [1.0]


def test_a_503_that_stays_is_an_internal_server_error_of_that_status(server: Running) -> None:
    with client_of(server, Watched(), max_retries=0) as client:
        server.service.is_draining = True
        try:
            with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
                client.completions.create(model="tiny", prompt="x")
        finally:
            server.service.is_draining = False
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("fields", "kind", "status"),
    [
        ({"temperature": 9}, openai.BadRequestError, 400),
        ({"model": "another"}, openai.NotFoundError, 404),
        ({"response_format": {"type": "json_object"}}, openai.InternalServerError, 501),
    ],
)
def test_what_will_never_do_is_not_asked_for_again(
    server: Running, fields: dict[str, Any], kind: type[openai.APIStatusError], status: int
) -> None:
    watched = Watched()
    with client_of(server, watched, max_retries=3) as client, pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES} | fields)
    assert caught.value.status_code == status
    assert watched.statuses == [status]


def test_many_requests_go_over_one_connection_errors_too(server: Running) -> None:
    """Not streams: this client hangs up at [DONE], before the end of the answer."""
    watched = Watched()
    with client_of(server, watched) as client:
        for _ in range(3):
            client.models.list()
            client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("another")
    assert len(watched.statuses) == 9
    assert len(watched.connections) == 1


def test_a_client_whose_time_is_out_leaves_nothing_behind(server: Running) -> None:
    """The engine stands still, so that the answer cannot be there in time."""
    gate = StepGate(server)
    try:
        with client_of(server, Watched(), max_retries=0, timeout=0.2) as client, pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**ENDLESS)
        until(lambda: server.service.num_in_flight == 0)
    finally:
        gate.open()
    until(lambda: server.engine.progress().num_unfinished == 0)
    assert gate.num_let <= 2


def test_a_stream_that_is_closed_early_is_computed_no_further(server: Running) -> None:
    gate = StepGate(server)
    try:
        with client_of(server, Watched()) as client:
            gate.let(2)
            stream = client.chat.completions.create(**ENDLESS, stream=True)
            assert next(iter(stream)).choices[0].delta.role == "assistant"
            stream.close()
            until(lambda: server.service.num_in_flight == 0)
    finally:
        gate.open()
    until(lambda: server.engine.progress().num_unfinished == 0)
    assert gate.num_let <= 4


def test_a_raw_stream_is_lines_of_events(server: Running) -> None:
    with (
        client_of(server, Watched()) as client,
        client.chat.completions.with_streaming_response.create(
            model="tiny", messages=MESSAGES, max_tokens=2, stream=True
        ) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_the_asynchronous_client_chats_streams_and_fails_alike(server: Running) -> None:
    async def talk() -> tuple[str, str, int]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            fields: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 9, "seed": 8}
            whole = await client.chat.completions.create(**fields)
            stream = await client.chat.completions.create(**fields, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**fields | {"messages": []})
            assert [card.id async for card in client.models.list()] == ["tiny"]
            return whole.choices[0].message.content or "", "".join(pieces), caught.value.status_code

    whole, streamed, status = asyncio.run(talk())
    assert whole == streamed != ""
    assert status == 400
