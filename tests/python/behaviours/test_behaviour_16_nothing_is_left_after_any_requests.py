"""Elsewhere: KV blocks and slots leak when requests are aborted."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.serving import Running, running_server
from server.step_gate import RawClient, inner, until


def random_body(rng: random.Random) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {},
        {"n": 3},
        {"n": 1, "best_of": 3},
        {"use_beam_search": True, "n": 2, "temperature": 0.0},
        {"stop": ["e", "th"]},
        {"logprobs": 2, "echo": True},
        {"prompt_logprobs": 1},
        {"prompt": [[7, 8], [9] * 30]},
        {"deadline": 1e-6},
        {"prompt": [10**9]},
        {"temperature": -1.0},
        {"prompt": [5] * 1000},
    ]
    body: dict[str, Any] = {
        "prompt": [rng.randrange(3, 60)] * rng.choice((1, 8, 17, 40)),
        "max_tokens": rng.choice((1, 5, 30)),
        "ignore_eos": True,
        "stream": rng.random() < 0.5,
    }
    body |= rng.choice(kinds)
    if body.get("use_beam_search") or "prompt_logprobs" in body:
        body["stream"] = False
    return body


def one_of_anything(server: Running, seed: int) -> None:
    """Ask and read, or leave before, in the middle, or after an abort by name."""
    rng = random.Random(seed)
    body = random_body(rng) | {"request_id": f"r{seed}"}
    how = rng.random()
    if how < 0.3:
        client = RawClient(server.url, body)
        if how < 0.2:
            client.socket.recv(rng.choice((1, 300, 3000)))
        client.leave()
        return
    if how < 0.4:
        client = RawClient(server.url, body)
        httpx.post(f"{server.url}/abort", json={"request_id": f"r{seed}"}, timeout=60)
        client.socket.recv(100)
        client.leave()
        return
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code in (200, 400)


@pytest.mark.parametrize("seed", range(3))
def test_behaviour_16_after_any_requests_every_block_is_free_and_every_table_empty(tiny_llama: Path, seed: int) -> None:
    with running_server(tiny_llama, num_blocks=24, swap_space=0.001) as server:
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda number: one_of_anything(server, 1000 * seed + number), range(80)))
        until(lambda: not server.service.calls and server.engine.progress().num_unfinished == 0)
        engine, thread = inner(server), server.engine._thread
        engine.scheduler.check_invariants()
        assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks == 24
        assert engine.scheduler.num_free_host_blocks == engine.scheduler.num_host_blocks
        assert (len(engine._outputs), len(thread._mailboxes), len(server.engine._preparing)) == (0, 0, 0)
        stats = server.engine.stats
        assert stats is not None
        assert stats.num_started == sum(stats.finished.values())
        assert (stats.num_running, stats.num_waiting) == (0, 0)
