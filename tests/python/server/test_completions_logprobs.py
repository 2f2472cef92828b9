"""Logprobs over /v1/completions: of answers, of echoed prompts, and of prompts alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.completions import choices, events, in_process, legacy_logprobs, post
from server.serving import Running, running_server

from fastpaged.outputs import Logprob
from fastpaged.server.completion_logprobs import CompletionLogprobs
from fastpaged.server.json_answer import json_answer

PROMPT = "The cat is on the mat"
ASKED: dict[str, Any] = {"seed": 9, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama, max_logprobs=-1) as running:
        yield running


@pytest.fixture(scope="module")
def first_name(server: Running) -> dict[int, str]:
    tokenizer = server.engine.get_tokenizer()
    first = tokenizer.encode(PROMPT)[0]
    return {first: tokenizer.token_text(first)}


@pytest.mark.parametrize("count", [0, 1, 5, 400])
def test_columns_of_logprobs_are_those_of_the_engine(server: Running, count: int) -> None:
    [expected] = in_process(server, PROMPT, logprobs=min(count, 300), **ASKED).outputs
    assert expected.logprobs is not None
    columns = legacy_logprobs(expected.token_ids, list(expected.logprobs), {})
    [whole] = post(server, prompt=PROMPT, logprobs=min(count, 300), **ASKED)["choices"]
    assert whole["logprobs"] == columns
    [streamed] = choices(events(server, prompt=PROMPT, logprobs=min(count, 300), **ASKED)).values()
    assert streamed["logprobs"] == columns


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["e", "t", "a"], "seed": 3},
        {"n": 2, "best_of": 4},
        {"n": 2, "use_beam_search": True, "seed": None, "temperature": 0},
    ],
    ids=["a stop string", "the best of some", "beams"],
)
def test_choices_of_every_kind_have_their_logprobs(server: Running, fields: dict[str, Any]) -> None:
    asked = {**ASKED, "logprobs": 3, **fields}
    expected = in_process(server, PROMPT, **asked)
    answer = post(server, prompt=PROMPT, **asked)
    assert len(answer["choices"]) == len(expected.outputs) == fields.get("n", 1)
    for choice, one in zip(answer["choices"], expected.outputs, strict=True):
        assert one.logprobs is not None
        assert choice["logprobs"] == legacy_logprobs(one.token_ids, list(one.logprobs), {})


@pytest.mark.parametrize("n", [1, 3])
def test_an_echo_begins_with_the_prompt_and_its_logprobs(server: Running, first_name: dict[int, str], n: int) -> None:
    expected = in_process(server, PROMPT, logprobs=2, prompt_logprobs=2, n=n, **ASKED)
    asked = {"prompt": PROMPT, "echo": True, "logprobs": 2, "n": n, **ASKED}
    whole = {choice["index"]: choice for choice in post(server, **asked)["choices"]}
    streamed = choices(events(server, **asked))
    for answer in expected.outputs:
        assert answer.logprobs is not None
        assert expected.prompt_logprobs is not None
        ids = expected.prompt_token_ids + answer.token_ids
        columns = legacy_logprobs(ids, [*expected.prompt_logprobs, *answer.logprobs], first_name)
        assert columns["token_logprobs"][0] is None
        assert columns["top_logprobs"][0] is None
        for found in (whole[answer.index], streamed[answer.index]):
            assert found["text"] == PROMPT + answer.text
            assert found["logprobs"] == columns


def test_an_echo_of_token_ids_is_their_text(server: Running) -> None:
    ids = server.engine.get_tokenizer().encode(PROMPT)
    [choice] = post(server, prompt=ids, echo=True, max_tokens=1)["choices"]
    assert choice["text"].startswith(PROMPT)


def test_a_prompt_is_scored_with_nothing_generated(server: Running, first_name: dict[int, str]) -> None:
    expected = in_process(server, PROMPT, prompt_logprobs=1, max_tokens=1)
    assert expected.prompt_logprobs is not None
    columns = legacy_logprobs(expected.prompt_token_ids, list(expected.prompt_logprobs), first_name)
    asked = {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 0, "return_token_ids": True}
    answer = post(server, **asked)
    [streamed] = choices(events(server, **asked)).values()
    for choice in (answer["choices"][0], streamed):
        assert choice["text"] == PROMPT
        assert choice["token_ids"] == []
        assert choice["finish_reason"] == "length"
        assert choice["logprobs"] == columns
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == len(expected.prompt_token_ids)


@pytest.mark.parametrize(("shown", "columns"), [(0, None), (3, None), (1, 4), (4, 1), (-1, 2)])
def test_prompt_logprobs_show_as_many_as_they_were_asked_for(server: Running, shown: int, columns: int | None) -> None:
    expected = in_process(server, PROMPT, prompt_logprobs=shown, max_tokens=1)
    assert expected.prompt_logprobs is not None
    [choice] = post(
        server, prompt=PROMPT, prompt_logprobs=shown, echo=columns is not None, logprobs=columns, max_tokens=1
    )["choices"]
    assert choice["prompt_logprobs"][0] is None
    for entry, found in zip(choice["prompt_logprobs"][1:], list(expected.prompt_logprobs)[1:], strict=True):
        assert found is not None
        assert entry == {
            str(token_id): {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.decoded_token}
            for token_id, one in found.items()
        }
    if columns is not None:
        tops = choice["logprobs"]["top_logprobs"][1 : len(expected.prompt_token_ids)]
        assert all(1 <= len(top) <= columns + 1 for top in tops)
        assert max(map(len, tops)) >= columns


def test_tokens_are_called_by_their_ids_where_somebody_says_so(server: Running) -> None:
    asked = {"prompt": PROMPT, "logprobs": 2, "return_token_ids": True, **ASKED}
    [plain] = post(server, **asked)["choices"]
    [named] = post(server, return_tokens_as_token_ids=True, **asked)["choices"]
    assert named["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in plain["token_ids"]]
    assert named["logprobs"]["token_logprobs"] == plain["logprobs"]["token_logprobs"]
    assert named["logprobs"]["text_offset"] == plain["logprobs"]["text_offset"]
    for name, top in zip(named["logprobs"]["tokens"], named["logprobs"]["top_logprobs"], strict=True):
        assert name in top
        assert 2 <= len(top) <= 3


def test_what_cannot_come_has_a_number_that_json_can_hold() -> None:
    entry = {5: Logprob(-1.0, 1, "a"), 6: Logprob(float("-inf"), 2, "b")}
    columns = CompletionLogprobs(2, as_ids=False, token_text=lambda _: None).body([5, 6], [entry, entry])
    assert columns["token_logprobs"] == [-1.0, -9999.0]
    assert columns["top_logprobs"] == [{"a": -1.0, "b": -9999.0}] * 2


def test_of_tokens_with_one_name_the_one_that_came_is_told_of() -> None:
    entry = {7: Logprob(-3.0, 9, "\ufffd"), 5: Logprob(-1.0, 1, "\ufffd"), 6: Logprob(-2.0, 2, "b")}
    columns = CompletionLogprobs(2, as_ids=False, token_text=lambda _: None).body([7], [entry])
    assert columns["top_logprobs"] == [{"\ufffd": -3.0, "b": -2.0}]


@pytest.mark.parametrize(("count", "is_beside"), [(5, False), (300, True)])
def test_many_logprobs_are_written_beside_the_event_loop(server: Running, count: int, is_beside: bool) -> None:
    outputs = [in_process(server, PROMPT, logprobs=count, **ASKED)]
    writers: list[int] = []

    def body(_: object) -> dict[str, Any]:
        writers.append(threading.get_ident())
        return {}

    asyncio.run(json_answer(outputs, body, {}))
    assert (writers != [threading.get_ident()]) == is_beside
