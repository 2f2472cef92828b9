"""The KV cache over HTTP: /kv and pinned prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.serving import running_server

PROMPT = list(range(3, 30))  # three blocks of 8 and three tokens


def test_the_snapshot_is_the_engines(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        server.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}).raise_for_status()
        body = server.client.get("/kv").json()
        device = body["tiers"]["device"]
        assert (
            device["split"]["num_slots"]
            == 64 * 8
            == sum(
                device["split"][use] for use in ("token_states", "reserved", "internal_waste", "free", "quarantined")
            )
        )
        assert sum(block["cached"] for block in device["blocks"]) == 3
        short = server.client.get("/kv?blocks=false").json()
        assert "blocks" not in short["tiers"]["device"]
        assert short["tiers"]["device"]["split"] == device["split"]


def test_a_prefix_is_pinned_listed_used_and_unpinned(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        pinned = server.client.post("/v1/cache/prefixes", json={"prompt": PROMPT, "ttl": 1000.0}).json()
        assert (pinned["num_tokens"], pinned["num_blocks"], pinned["resident"]) == (24, 3, True)
        assert 0 < pinned["expires_in"] <= 1000
        [listed] = server.client.get("/v1/cache/prefixes").json()["data"]
        assert listed["id"] == pinned["id"]
        used = server.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}).json()["usage"]
        assert used["prompt_tokens_details"]["cached_tokens"] >= 24
        assert server.client.delete(f"/v1/cache/prefixes/{pinned['id']}").json()["deleted"]
        assert server.client.get("/v1/cache/prefixes").json()["data"] == []
        assert server.client.delete(f"/v1/cache/prefixes/{pinned['id']}").status_code == 404


def test_what_cannot_be_pinned_is_refused_with_the_reason(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        bodies: list[dict[str, Any]] = [
            {},
            {"prompt": []},
            {"prompt": [1]},
            {"prompt": "x", "messages": []},
            {"prompt": PROMPT * 8},
        ]
        for body in bodies:
            answer = server.client.post("/v1/cache/prefixes", json=body)
            assert answer.status_code == 400, body
            assert answer.json()["error"]["message"]
