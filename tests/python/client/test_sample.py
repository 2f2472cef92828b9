"""What one answer's events amount to: scripted events at scripted times, by either route."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client.scripted import chat_event, text_event

from fastpaged.client.bench_request import BenchRequest
from fastpaged.client.endpoint import ENDPOINTS
from fastpaged.client.sample import Sample, SampleReader
from fastpaged.client.server_error import ServerError
from fastpaged.errors import InvalidRequestError

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def read(route: str, *events: tuple[float, dict[str, Any]]) -> Sample:
    """Of a request of 7 tokens that was sent at 10."""
    reader = SampleReader(ENDPOINTS[route], 10.0, 7)
    for now, event in events:
        reader.take(now, json.dumps(event))
    return reader.sample


def test_an_answer_by_completions() -> None:
    sample = read(
        "completions",
        (11.0, text_event("a")),
        (11.5, text_event("b")),
        (13.5, text_event("c", "length")),
        (99.0, usage(5, 3)),
    )
    assert (sample.ttft, sample.itls, sample.latency) == (1.0, [0.5, 2.0], 3.5)
    assert sample.tpot == 1.25
    assert (sample.num_input_tokens, sample.num_output_tokens) == (5, 3)
    assert sample.text == ["a", "b", "c"]


def test_an_answer_in_a_chat_begins_behind_its_role() -> None:
    sample = read(
        "chat", (11.0, ROLE), (12.0, chat_event("a")), (13.0, chat_event("b")), (15.0, chat_event("", "stop"))
    )
    assert (sample.ttft, sample.itls, sample.latency) == (2.0, [1.0], 5.0)
    assert sample.tpot == 3.0


@pytest.mark.parametrize(("route", "event"), [("completions", text_event), ("chat", chat_event)])
def test_an_event_with_no_text_brings_tokens_unless_it_is_the_end(route: str, event: Any) -> None:
    sample = read(route, (11.0, event("")), (12.0, event("é")), (14.0, event("", "stop")))
    assert sample.token_times == [11.0, 12.0]
    assert sample.latency == 4.0


def test_thoughts_before_the_answer_are_tokens_too() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None}]}
    assert read("chat", (11.0, ROLE), (12.0, thought), (13.0, chat_event("a"))).token_times == [12.0, 13.0]


def test_tokens_are_the_server_s_count_wherever_it_comes_and_several_may_be_in_an_event() -> None:
    early = text_event("abc") | {"usage": {"prompt_tokens": 5, "completion_tokens": 4}}
    sample = read("completions", (11.0, early), (12.0, text_event("d", "stop") | {"usage": usage(5, 6)["usage"]}))
    assert (sample.num_input_tokens, sample.num_output_tokens) == (5, 6)
    assert sample.tpot == 1.0 / 5


def test_without_a_count_events_are_counted_and_the_prompt_is_what_it_was_made_with() -> None:
    sample = read("completions", (11.0, text_event("a")), (12.0, text_event("b", "stop")))
    assert (sample.num_input_tokens, sample.num_output_tokens, sample.is_counted_by_server) == (7, 2, False)


def test_an_answer_of_no_or_one_token_has_no_time_between_tokens() -> None:
    empty = read("completions", (11.0, text_event("", "stop")), (11.0, usage(7, 0)))
    assert (empty.ttft, empty.tpot, empty.itls, empty.latency) == (None, None, [], 1.0)
    one = read("completions", (11.0, text_event("a", "stop")))
    assert (one.ttft, one.tpot, one.itls) == (1.0, None, [])


@pytest.mark.parametrize("data", ['{"error": {"message": "it fell"}}', "no", "[1]"])
def test_an_event_that_is_an_error_or_nothing_fails_the_request(data: str) -> None:
    with pytest.raises(ServerError, match=r"it fell|no JSON object"):
        SampleReader(ENDPOINTS["chat"], 0.0, 1).take(1.0, data)


def test_bodies_are_what_the_routes_take() -> None:
    ids, text = BenchRequest([1, 2], 2, 3), BenchRequest("hi", 1, 3)
    assert ENDPOINTS["completions"].body(ids) == {"prompt": [1, 2], "max_tokens": 3}
    assert ENDPOINTS["completions"].body(text) == {"prompt": "hi", "max_tokens": 3}
    assert ENDPOINTS["chat"].body(text) == {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with pytest.raises(InvalidRequestError, match="completions for prompts of token ids"):
        ENDPOINTS["chat"].body(ids)
