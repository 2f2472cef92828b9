"""What tests of /v1/completions share: requests over HTTP, and the same ones in process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
from server.serving import Running

from fastpaged import RequestOutput, SamplingParams

PATH = "/v1/completions"


def post(server: Running, **body: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(server: Running, **body: Any) -> tuple[int, dict[str, Any]]:
    """Its status and what is said of it."""
    response = server.client.post(PATH, content=json.dumps(body), headers={"Content-Type": "application/json"})
    [(name, error)] = response.json().items()
    assert name == "error"
    assert error["code"] == response.status_code
    return response.status_code, error


def events(server: Running, **body: Any) -> list[dict[str, Any]]:
    """Of a stream, without [DONE]."""
    with server.client.stream("POST", PATH, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(parsed(response))


def parsed(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Each event is one line of data and an empty line; [DONE] is the last and stands there once."""
    lines = list(response.iter_lines())
    assert lines[1::2] == [""] * (len(lines) // 2)
    assert all(line.startswith("data: ") for line in lines[::2])
    assert lines[-2:] == ["data: [DONE]", ""]
    for line in lines[:-2:2]:
        yield json.loads(line[6:])


def choices(stream: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a reader of a stream adds up for each choice: lists and texts of its pieces, and its last word."""
    added: dict[int, dict[str, Any]] = {}
    for event in stream:
        for piece in event["choices"]:
            sum_ = added.setdefault(piece["index"], {"text": "", "token_ids": [], "finish_reason": None})
            assert sum_["finish_reason"] is None  # nothing comes behind the end
            sum_["text"] += piece["text"]
            sum_["token_ids"] += piece.get("token_ids", [])
            if piece["logprobs"] is not None:
                columns = sum_.setdefault("logprobs", {name: [] for name in piece["logprobs"]})
                for name, column in piece["logprobs"].items():
                    columns[name] += column
            for name in ("finish_reason", "stop_reason", "seed"):
                sum_[name] = piece.get(name)
    return added


@contextlib.contextmanager
def reader_keeps_up(server: Running) -> Iterator[None]:
    """For one request at a time: the engine makes a step once the output of the one before has been read, so that no
    two become one."""
    while server.engine.progress().num_unfinished > 0:
        pass
    is_read = threading.Semaphore(1)
    real, engine = server.engine.generate, server.engine._thread.engine

    async def generate(*args: Any, **more: Any) -> AsyncGenerator[RequestOutput, None]:
        try:
            async with contextlib.aclosing(real(*args, **more)) as outputs:
                async for output in outputs:
                    yield output
                    is_read.release()
        finally:
            is_read.release(1000)  # what was begun ends

    def planned() -> None:
        assert is_read.acquire(timeout=60)

    engine.on_planned = planned
    server.engine.generate = generate  # type: ignore[method-assign]
    try:
        yield
    finally:
        server.engine.generate = real  # type: ignore[method-assign]
        engine.on_planned = None


def in_process(server: Running, prompt: Any, **params: Any) -> RequestOutput:
    """The same engine's own answer."""

    async def last() -> RequestOutput:
        found = None
        async for output in server.engine.generate(prompt, SamplingParams(**params)):
            found = output
        assert found is not None
        return found

    return asyncio.run(last())


def legacy_logprobs(token_ids: list[int], entries: list[Any], names: dict[int, str]) -> dict[str, list[Any]]:
    """The columns that stand for these entries, made plainly. names: of the tokens without one."""
    columns: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    offset = 0
    for token_id, entry in zip(token_ids, entries, strict=True):
        name = names[token_id] if entry is None else entry[token_id].decoded_token
        columns["text_offset"].append(offset)
        columns["tokens"].append(name)
        columns["token_logprobs"].append(None if entry is None else entry[token_id].logprob)
        top: dict[str, float] | None = None
        if entry is not None:
            top = {}
            for found in entry.values():
                top.setdefault(found.decoded_token, found.logprob)
        columns["top_logprobs"].append(top)
        offset += len(name)
    return columns
