"""Elsewhere: the server's memory grows by what each request leaves behind."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from server.serving import Running, running_server
from server.step_gate import until

KINDS: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"n": 2},
    {"logprobs": 1},
    {"prompt": [10**9]},
    {"prompt": [[5], [6]]},
    {"request_id": "mine"},
    {"another": 1},
]


def ask(server: Running, count: int) -> int:
    """Python's objects afterwards."""
    for number in range(count):
        body = {"prompt": [5, 6, 7], "max_tokens": 2, **KINDS[number % len(KINDS)]}
        server.client.post("/v1/completions", json=body)
    until(lambda: not server.service.calls and server.engine.progress().num_unfinished == 0)
    gc.collect()
    return len(gc.get_objects())


def test_behaviour_19_thousands_of_requests_leave_no_object(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        ask(server, 200)
        before = ask(server, 80)
        after = ask(server, 1600)
        assert after - before < 160, f"{after - before} objects more after 1600 requests"
        assert not server.engine._thread._mailboxes
