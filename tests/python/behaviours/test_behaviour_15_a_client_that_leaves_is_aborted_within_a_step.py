"""Elsewhere: the client is gone, and its answer is computed to the end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.serving import Running, running_server
from server.step_gate import RawClient, StepGate, inner, until

ASK: dict[str, Any] = {"prompt": [5, 6, 7, 8, 9], "max_tokens": 100, "ignore_eos": True, "seed": 1}
OTHER: dict[str, Any] = ASK | {"prompt": [11, 12, 13], "max_tokens": 40}

# State -> (what is asked, settings of the engine, steps until it is in that state).
STATES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "waiting": ({}, {"max_num_seqs": 1}, 3),
    "prefilling": ({"prompt": [5] * 200}, {"max_num_batched_tokens": 16, "prefill_share": 0}, 4),
    "decoding, streamed": ({"stream": True}, {}, 6),
    "decoding, not streamed": ({}, {}, 6),
    "several samples": ({"n": 4, "stream": True}, {}, 6),
    "best of several": ({"n": 2, "best_of": 4}, {}, 6),
    "beams": ({"use_beam_search": True, "n": 3, "temperature": 0.0, "seed": None}, {}, 6),
    "several prompts": ({"prompt": [[5, 6], [7, 8], [9, 10]], "stream": True}, {}, 6),
}


def ask_other(server: Running, answers: list[list[int]]) -> threading.Thread:
    """A request that stays, and keeps the engine going."""

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            answer = client.post("/v1/completions", json=OTHER | {"return_token_ids": True}).json()
        answers.append(answer["choices"][0]["token_ids"])

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize("state", STATES)
def test_behaviour_15_a_client_that_leaves_is_aborted_within_a_step(tiny_llama: Path, state: str) -> None:
    fields, settings, steps = STATES[state]
    with running_server(tiny_llama, **settings) as server:
        answers: list[list[int]] = []
        ask_other(server, answers).join()
        gate = StepGate(server)
        other = ask_other(server, answers)
        until(lambda: len(server.service.calls) == 1)
        client = RawClient(server.url, ASK | fields)
        until(lambda: len(server.service.calls) == 2 and all(server.service.calls.values()))
        _, leaving = list(server.service.calls.values())
        gate.let(steps)
        until(lambda: gate.num_let == steps)
        until(lambda: all(inner(server).has_request(name) for name in leaving))
        client.leave()
        until(lambda: len(server.service.calls) == 1)
        gate.let(2)  # the step that is planned already, and the one after it
        until(lambda: gate.num_let == steps + 2)
        assert not any(inner(server).has_request(name) for name in leaving)
        gate.open()
        other.join()
        assert answers[0] == answers[1]
        until(lambda: server.engine.progress().num_unfinished == 0)
        scheduler = inner(server).scheduler
        scheduler.check_invariants()
        assert scheduler.num_free_blocks == scheduler.num_blocks


def test_behaviour_15_a_client_that_leaves_while_its_prompt_is_tokenised_is_never_computed(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        tokenizer = inner(server).tokenizer
        begun, go_on = threading.Event(), threading.Event()
        encode = tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            begun.set()
            assert go_on.wait(60)
            return encode(text, **options)

        tokenizer.encode = slow_encode  # type: ignore[method-assign]
        before = inner(server).scheduler.stats.num_prefix_tokens_looked_up
        client = RawClient(server.url, {"prompt": "a b " * 2000, "truncate_prompt_tokens": 9})
        assert begun.wait(60)
        assert server.service.num_in_flight == 1
        client.leave()
        until(lambda: server.service.num_in_flight == 0)
        go_on.set()
        server.client.post("/v1/completions", json=ASK | {"max_tokens": 1}).raise_for_status()
        assert inner(server).scheduler.stats.num_prefix_tokens_looked_up == before + 5


def test_behaviour_15_an_abort_by_name_ends_a_call_whose_requests_are_still_to_come(tiny_llama: Path) -> None:
    with running_server(tiny_llama) as server:
        tokenizer = inner(server).tokenizer
        begun, go_on = threading.Event(), threading.Event()
        encode = tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            begun.set()
            assert go_on.wait(60)
            return encode(text, **options)

        tokenizer.encode = slow_encode  # type: ignore[method-assign]
        body = ASK | {"prompt": ["a b " * 2000, "x"], "truncate_prompt_tokens": 9, "request_id": "many"}
        client = RawClient(server.url, body)
        assert begun.wait(60)
        aborted = httpx.post(f"{server.url}/abort", json={"request_id": "many"}, timeout=60).json()
        assert aborted == {"aborted": ["cmpl-many"]}
        go_on.set()
        assert client.read_until(b'"usage"').count(b'"finish_reason":"abort"') == 2
        client.leave()


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_behaviour_15_a_client_whose_request_is_preempted_leaves_nothing_behind(tiny_llama: Path, mode: str) -> None:
    with running_server(tiny_llama, num_blocks=10, preemption_mode=mode, swap_space=0.001) as server:
        scheduler = inner(server).scheduler
        answers: list[list[int]] = []
        ask_other(server, answers).join()
        gate = StepGate(server)
        other = ask_other(server, answers)
        until(lambda: len(server.service.calls) == 1 and all(server.service.calls.values()))
        client = RawClient(server.url, ASK | {"max_tokens": 60})
        until(lambda: len(server.service.calls) == 2 and all(server.service.calls.values()))
        _, leaving = list(server.service.calls.values())
        while scheduler.num_swapped + scheduler.num_waiting == 0 or not inner(server).has_request(leaving[0]):
            steps = gate.num_let + 1
            gate.let(1)
            until(lambda steps=steps: gate.num_let == steps)  # type: ignore[misc]
        assert scheduler.stats.num_preemptions == 1
        assert (scheduler.num_swapped == 1) == (mode == "swap")
        client.leave()
        until(lambda: len(server.service.calls) == 1)
        steps = gate.num_let + 2
        gate.let(2)
        until(lambda: gate.num_let == steps)
        assert not inner(server).has_request(leaving[0])
        assert (scheduler.num_swapped, scheduler.num_waiting) == (0, 0)
        gate.open()
        other.join()
        assert answers[0] == answers[1]
        until(lambda: server.engine.progress().num_unfinished == 0)
        assert scheduler.num_free_blocks == scheduler.num_blocks
        assert scheduler.num_free_host_blocks == scheduler.num_host_blocks
