"""What /v1/completions refuses, with which words, and that nothing of it stays."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.completions import PATH, post, refused
from server.serving import Running, running_server

NAMES = {400: "BadRequestError", 404: "NotFoundError", 501: "NotImplementedError"}
# Of each: the fields, the one that is blamed (None: any, or nobody), the status.
REFUSED: list[tuple[dict[str, Any], str | None, int]] = [
    ({"stream_options": {"include_usage": True}}, "stream_options", 400),
    ({"stream": True, "use_beam_search": True}, "stream", 400),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", 400),
    ({"prompt_logprobs": -2}, "prompt_logprobs", 400),
    ({"prompt_logprobs": -2, "echo": True, "logprobs": 1}, "prompt_logprobs", 400),
    ({"logprobs": -1}, "logprobs", 400),
    ({"logprobs": 21}, "logprobs", 400),
    ({"max_tokens": 0}, "max_tokens", 400),
    ({"max_tokens": -1, "echo": True}, "max_tokens", 400),
    ({"n": 0}, "n", 400),
    ({"n": 16385}, "n", 400),
    ({"n": 3, "best_of": 2}, "best_of", 400),
    ({"n": 2, "temperature": 0}, "n", 400),
    ({"n": True}, "n", 400),
    ({"temperature": 2.5}, "temperature", 400),
    ({"temperature": "1"}, "temperature", 400),
    ({"top_p": 0}, "top_p", 400),
    ({"top_k": -2}, "top_k", 400),
    ({"min_p": 1.5}, "min_p", 400),
    ({"seed": 2**64}, "seed", 400),
    ({"stop": ""}, "stop", 400),
    ({"stop_token_ids": [300]}, "stop_token_ids", 400),
    ({"length_penalty": 2.0}, "length_penalty", 400),
    ({"logit_bias": {"the": 1}}, None, 400),
    ({"logit_bias": {"300": 1}}, None, 400),
    ({"allowed_token_ids": [1] * 300000}, "allowed_token_ids", 400),
    ({"allowed_token_ids": []}, "allowed_token_ids", 400),
    ({"bad_words": [""]}, None, 400),
    ({"min_tokens": 17}, "min_tokens", 400),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", 400),
    ({"truncate_prompt_tokens": 10**30}, "truncate_prompt_tokens", 400),
    ({"truncate_prompt_tokens": 1, "truncation_side": "middle"}, "truncation_side", 400),
    ({"priority": 1}, "priority", 400),
    ({"deadline": 0}, "deadline", 400),
    ({"queue_timeout": -1}, "queue_timeout", 400),
    ({"request_id": "with a space"}, "request_id", 400),
    ({"request_id": ""}, "request_id", 400),
    ({"cache_salt": ""}, None, 400),
    ({"prompt": ""}, "prompt", 400),
    ({"prompt": []}, "prompt", 400),
    ({"prompt": None}, None, 400),
    ({"prompt": [[]]}, None, 400),
    ({"prompt": ["a", 1]}, None, 400),
    ({"prompt": ["a", ""]}, "prompt", 400),
    ({"prompt": ["a"] * 1025}, "prompt", 400),
    ({"prompt": [1, 300]}, None, 400),
    ({"prompt": [1] * 100000}, None, 400),
    ({"prompt": "the " * 2000}, None, 400),
    ({"prompt": "\ud800"}, "prompt", 400),
    ({"response_format": {"type": "json_schema"}}, "response_format", 400),
    ({"response_format": {"type": "json_object"}}, "response_format", 501),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs", 501),
    ({"logprob_token_ids": [1]}, "logprob_token_ids", 501),
    ({"suffix": "end"}, "suffix", 501),
    ({"model": "other"}, "model", 404),
]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


@pytest.mark.parametrize(("fields", "blamed", "status"), REFUSED, ids=lambda value: repr(value)[:50])
def test_what_cannot_be_is_refused_with_the_name_of_the_field(
    server: Running, fields: dict[str, Any], blamed: str | None, status: int
) -> None:
    found, error = refused(server, **({"prompt": "The cat"} | fields))
    assert found == status
    assert error["type"] == NAMES[status]
    if blamed is not None:
        assert error["param"] == blamed
        assert blamed in error["message"]
    assert 0 < len(error["message"]) < 600
    assert server.service.num_in_flight == 0
    while server.engine.progress().num_unfinished > 0:
        pass  # what was let in of several prompts is aborted before the next step


def test_a_prompt_that_is_too_long_is_told_the_longest(server: Running) -> None:
    _, error = refused(server, prompt=[5] * 600)
    assert error["message"].startswith("This model's maximum context length is 512 tokens. However, ")


def test_nobody_is_to_ask_again_for_what_is_not_there(server: Running) -> None:
    absent = server.client.post(PATH, json={"prompt": "The cat", "suffix": "end"})
    assert absent.headers["x-should-retry"] == "false"
    assert "x-should-retry" not in server.client.post(PATH, json={"prompt": ""}).headers


def test_harmless_values_of_what_is_not_there_are_let_pass(server: Running) -> None:
    harmless: dict[str, Any] = {"response_format": {"type": "text"}, "structured_outputs": None, "suffix": ""}
    assert post(server, prompt="The cat", max_tokens=1, **harmless)["choices"]


def test_a_field_that_nobody_knows_is_let_pass_and_logged_once(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            post(server, prompt="The cat", max_tokens=1, flux_capacitor={"on": True})
    assert [record.getMessage() for record in caplog.records if "flux_capacitor" in record.getMessage()] == [
        "a request's field 'flux_capacitor' is not known here; it is ignored"
    ]


def test_an_id_that_is_in_use_is_refused_and_its_owner_is_not_hurt(server: Running) -> None:
    body = {"prompt": "The cat", "request_id": "twice", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        status, error = refused(server, prompt="The cat", request_id="twice")
        assert status == 400
        assert error["param"] == "request_id"
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_more_than_the_queue_holds_is_503_and_may_come_again(tiny_llama: Path) -> None:
    with running_server(tiny_llama, max_num_seqs=1, max_num_queued_requests=3) as server:
        for stream in (False, True):
            response = server.client.post(PATH, json={"prompt": ["The cat"] * 30, "stream": stream, "max_tokens": 50})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["type"] == "ServiceUnavailableError"
        while server.engine.progress().num_unfinished > 0:
            pass  # what was let in of them is aborted with the rest
        assert post(server, prompt="The cat", max_tokens=1)["choices"]
