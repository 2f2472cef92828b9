"""The server's own description of itself, and requests that it makes us think of."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
from server.api_fuzz import ApiFuzz
from server.serving import running_server

STREAM = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "seed": 7, "stream": True}


def text_of_stream(url: str) -> str:
    with httpx.stream("POST", f"{url}/v1/completions", json=STREAM, timeout=120) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def test_no_made_up_request_breaks_the_server_or_changes_another_s_answer(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        undisturbed = text_of_stream(server.url)
        over = threading.Event()
        disturbed = []

        def keep_asking() -> None:
            while not over.is_set():
                disturbed.append(text_of_stream(server.url))

        other = threading.Thread(target=keep_asking)
        other.start()
        fuzz = ApiFuzz(server.url)
        try:
            fuzz.run(12)
        finally:
            over.set()
            other.join(120)
        assert disturbed
        assert set(disturbed) == {undisturbed}
        assert fuzz.statuses[200] > 10
        assert fuzz.statuses[400] > 10
        assert server.client.get("/health").status_code == 200


def test_every_route_is_described_with_what_it_takes_and_answers(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        described = server.client.get("/openapi.json").json()
        assert server.client.get("/docs").status_code == 200
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/abort", "/v1/cache/prefixes"):
        assert "requestBody" in described["paths"][path]["post"], path
    for path in ("/v1/models", "/health", "/metrics", "/version", "/load", "/kv", "/v1/cache/prefixes"):
        assert "get" in described["paths"][path], path
