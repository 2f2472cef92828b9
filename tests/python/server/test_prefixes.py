"""Pinned prefixes over HTTP: who may pin how much, and for how long it lasts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from server.serving import SETTINGS, Running, running_server
from server.step_gate import RawClient, StepGate, inner, until

from fastpaged import LLM, SamplingParams
from fastpaged.server.settings import ServerSettings

PROMPT = list(range(3, 30))  # three blocks of 8 and three tokens
ROUTE = "/v1/cache/prefixes"


def pinned(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client.get(ROUTE).json()["data"]
    return found


def begun(server: Running) -> RawClient:
    """A client whose prefix is being computed."""
    client = RawClient(server.url, {"prompt": PROMPT}, path=ROUTE)
    until(lambda: inner(server).has_unfinished_requests())
    return client


def test_a_prefix_whose_client_leaves_while_it_is_computed_is_not_kept(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        gate = StepGate(server)
        begun(server).leave()
        until(server.service._idle.is_set)
        gate.open()
        assert pinned(server) == []
        assert server.client.get("/kv").json()["tiers"]["device"]["split"]["reserved"] == 0


def test_nothing_is_pinned_while_the_server_drains_but_what_was_begun(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        server.client.post(ROUTE, json={"prompt": PROMPT[::-1]}).raise_for_status()
        gate = StepGate(server)
        client = begun(server)
        server.service.is_draining = True
        refused = server.client.post(ROUTE, json={"prompt": PROMPT})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert server.service.num_in_flight == 1
        gate.open()
        assert b'"resident":true' in client.read_until(b"}")
        client.leave()
        assert [pin["id"] for pin in pinned(server)] == [0, 1]
        assert server.client.delete(f"{ROUTE}/0").status_code == 200


def test_the_end_of_the_server_waits_for_a_prefix_that_is_being_computed(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(shutdown_timeout=60)) as server:
        gate = StepGate(server)
        client = begun(server)
        server.server.end()
        until(lambda: server.service.is_draining)
        gate.open()
        answer = client.read_until(b"}")
        assert answer.startswith(b"HTTP/1.1 200")
        client.leave()


def test_pins_take_no_more_than_their_budget(tiny_llama: Path) -> None:
    with running_server(tiny_llama, pinned_prefix_budget=5 / 64) as server:
        first = server.client.post(ROUTE, json={"prompt": PROMPT}).json()
        refused = server.client.post(ROUTE, json={"prompt": PROMPT[::-1]})
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert "5 KV blocks of 8 tokens, of which pinned ones take 3; it needs 3" in message
        server.client.delete(f"{ROUTE}/{first['id']}").raise_for_status()
        assert server.client.post(ROUTE, json={"prompt": PROMPT[::-1]}).status_code == 200


def test_what_is_pinned_is_what_the_engine_would_pin_and_changes_no_answer(tiny_llama: Path) -> None:
    messages = [{"role": "system", "content": "You are a helpful assistant who answers at length."}]
    asked = [*messages, {"role": "user", "content": "hi"}]
    with LLM(str(tiny_llama), **SETTINGS) as llm:
        [expected] = llm.chat(asked, SamplingParams(max_tokens=6, seed=1))
        pin = llm.pin_prefix(messages)
    with running_server(tiny_llama) as server:
        shown = server.client.post(ROUTE, json={"messages": messages, "cache_salt": "a secret"}).json()
        assert (shown["num_tokens"], shown["num_blocks"]) == (pin.num_tokens, pin.num_blocks)
        assert "a secret" not in json.dumps([shown, pinned(server)])
        cached = {}
        for salt in (None, "a secret"):
            body = {"messages": asked, "max_tokens": 6, "seed": 1, "return_token_ids": True, "cache_salt": salt}
            answer = server.client.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["token_ids"] == expected.outputs[0].token_ids
            cached[salt] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == {None: 0, "a secret": pin.num_tokens}


def test_an_id_that_is_none_is_refused(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        statuses = [server.client.delete(f"{ROUTE}/{name}").status_code for name in ("0", "-1", "9" * 40, "x", "1.5")]
        assert statuses == [404, 404, 404, 400, 400]
