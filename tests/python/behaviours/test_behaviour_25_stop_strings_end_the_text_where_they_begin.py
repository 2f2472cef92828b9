"""Elsewhere: stop strings leak in part, are missed inside a token, or hold back more than they must."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from server.serving import Running, running_server
from server.step_gate import inner


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tiny_model import write_tiny_llama

    with running_server(write_tiny_llama(tmp_path_factory.mktemp("model"))) as running:
        yield running


def ask(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = server.client.post("/v1/completions", json=body).json()["choices"][0]
    return choice


def stream(server: Running, body: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The pieces, and the choice of the last event."""
    with server.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events]
    return [choice["text"] for choice in choices], choices[-1]


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the text ends, and by which string: the one that is complete first, of several the first in the list."""
    ends = [(text.find(stop) + len(stop), order, stop) for order, stop in enumerate(stops) if stop in text]
    if not ends:
        return None
    end, _, stop = min(ends)
    return end - len(stop), stop


def longest_held(text: str, stops: list[str]) -> int:
    """How much of its end may become a stop string."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


@pytest.mark.parametrize("seed", range(40))
def test_behaviour_25_a_stream_is_the_text_up_to_the_first_stop_string(server: Running, seed: int) -> None:
    """Stop strings are cut out of the answer that there is without them, or nearly are in it."""
    rng = random.Random(seed)
    body = {"prompt": "The cat", "max_tokens": 30, "seed": seed, "ignore_eos": True, "temperature": 1.2}
    full = ask(server, body)["text"]
    stops = []
    for _ in range(rng.randrange(1, 4)):
        begin = rng.randrange(len(full))
        stop = full[begin : begin + rng.randrange(1, 8)]
        stops.append(stop if rng.random() < 0.7 else stop + rng.choice("xyz~"))
    found = first_stop(full, stops)
    included = rng.random() < 0.3
    asked = body | {"stop": stops, "include_stop_str_in_output": included}
    whole = ask(server, asked)
    pieces, last = stream(server, asked)
    assert "".join(pieces) == whole["text"]
    if found is None:
        assert whole["text"] == full
        assert last["finish_reason"] == "length"
        return
    where, stop = found
    assert whole["text"] == full[: where + (len(stop) if included else 0)]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    shown = ""
    for piece in pieces[:-1]:
        shown += piece
        # What is shown is never taken back, and no more is held back than may become a stop string.
        assert full.startswith(shown)


@pytest.mark.parametrize("seed", range(10))
def test_behaviour_25_only_what_may_become_a_stop_string_is_held_back(server: Running, seed: int) -> None:
    """After any number of tokens; how many come in one event depends on the reader."""
    body = {"prompt": [5, 6, 7], "max_tokens": 25, "seed": seed, "ignore_eos": True, "temperature": 1.2}
    full = ask(server, body)["text"]
    stops = [full[2:6] + "~~~~~~~", full[9:11] + "qqqqqqqq"]
    asked = body | {"stop": stops, "stream": True, "return_token_ids": True}
    with server.client.stream("POST", "/v1/completions", json=asked) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    text_stream = inner(server).tokenizer.text_stream([5, 6, 7])
    plain = shown = ""
    for event in events[:-1]:
        [choice] = event["choices"]
        plain += "".join(text_stream.push(token_id) for token_id in choice["token_ids"])
        shown += choice["text"]
        assert plain[: len(plain) - longest_held(plain, stops)] == shown
    assert shown + events[-1]["choices"][0]["text"] == full
