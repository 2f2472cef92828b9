"""Elsewhere: /health says 200 while the engine hangs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from server.serving import running_server
from server.step_gate import RawClient, StepGate, inner, until

from fastpaged.engine.heartbeat import Heartbeat
from fastpaged.server.settings import ServerSettings

ASK: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 20, "ignore_eos": True}
THRESHOLD = 60.0


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 10**9

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


def test_behaviour_09_running_work_that_does_not_advance_is_stalled(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(stall_threshold=THRESHOLD)) as server:
        clock = Clock()
        inner(server).clock.source = clock
        gate = StepGate(server)
        client = RawClient(server.url, ASK)
        until(lambda: inner(server).has_request(next(iter(server.service.calls), "")))
        assert server.client.get("/health").json()["status"] == "ok"
        clock.pass_seconds(THRESHOLD)
        assert server.client.get("/health").status_code == 200
        clock.pass_seconds(1)
        stalled = server.client.get("/health")
        assert stalled.status_code == 503
        assert stalled.json()["status"] == "stalled"
        assert server.client.get("/metrics").text.count("fastpaged:healthy 0.0") == 1
        gate.let(1)
        until(lambda: server.client.get("/health").status_code == 200)
        gate.open()
        assert b'"finish_reason":"length"' in client.read_until(b'"usage"')
        client.leave()


def test_behaviour_09_an_idle_engine_is_well_however_long(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(stall_threshold=THRESHOLD)) as server:
        clock = Clock()
        inner(server).clock.source = clock
        clock.pass_seconds(10**6)
        assert server.client.get("/health").json() == {"status": "ok", "num_unfinished": 0}


def test_behaviour_09_a_step_that_computes_for_long_is_progress_while_its_ops_end() -> None:
    clock, ops = Clock(), [0]
    heart = Heartbeat(clock, lambda: ops[0])
    for _ in range(100):
        clock.pass_seconds(THRESHOLD - 1)
        ops[0] += 1
        assert heart.age() == 0
    clock.pass_seconds(THRESHOLD + 1)
    assert heart.age() == THRESHOLD + 1


def test_behaviour_09_ops_are_counted_while_a_step_is_computed(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        before = inner(server).num_ops_run()
        server.client.post("/v1/completions", json=ASK | {"max_tokens": 1}).raise_for_status()
        assert inner(server).num_ops_run() > before + 10


def test_behaviour_09_a_dead_engine_says_so(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:

        def die(*_: object) -> None:
            raise SystemExit("of its own")

        inner(server).on_planned = die  # type: ignore[assignment]
        answer = server.client.post("/v1/completions", json=ASK)
        assert answer.status_code == 500
        health = server.client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "dead"
        assert server.client.get("/metrics").text.count("fastpaged:healthy 0.0") == 1
        assert server.client.post("/v1/completions", json=ASK).status_code == 500


def test_behaviour_09_what_comes_to_an_engine_that_was_idle_for_long_is_no_stall(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(stall_threshold=THRESHOLD)) as server:
        clock, thread = Clock(), server.engine._thread
        inner(server).clock.source = clock
        clock.pass_seconds(10**6)
        held = threading.Event()
        asked = thread.ask(lambda _: held.wait(60))
        assert server.client.get("/health").status_code == 200
        held.set()
        assert asked.result(60)
