"""/tokenize and /detokenize: they say what the engine sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.chats import BEGUN, MESSAGES, refusal, rendered
from server.serving import Running, running_server

from fastpaged.tokenizer import Tokenizer

TEXT = "The cat é漢🙂\n and <|im_start|>"


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


def tokenizer(server: Running) -> Tokenizer:
    return server.engine.get_tokenizer()


def post(server: Running, path: str, **body: Any) -> dict[str, Any]:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("times", [0, 1, 1000])
def test_a_text_becomes_the_tokens_that_a_completion_of_it_has(server: Running, times: int) -> None:
    """A thousand times it is worked on beside the event loop."""
    text = TEXT * times
    answer = post(server, "/tokenize", prompt=text)
    ids = tokenizer(server).encode(text)
    assert answer == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    assert post(server, "/detokenize", tokens=ids) == {"prompt": text}


def test_special_tokens_around_a_text_are_put_there_unless_told_otherwise(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = Tokenizer.encode

    def encode(self: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        asked.append(add_special_tokens)
        return real(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    for given in ({}, {"add_special_tokens": None}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        post(server, "/tokenize", prompt="x", **given)
        post(server, "/tokenize", messages=MESSAGES, **given)
    assert asked == [True, False, True, False, True, True, False, False]


def test_messages_become_the_tokens_of_the_rendered_prompt(server: Running) -> None:
    assert post(server, "/tokenize", messages=MESSAGES)["tokens"] == rendered(server, MESSAGES)
    bare = post(server, "/tokenize", messages=MESSAGES, add_generation_prompt=False)
    assert bare["tokens"] == rendered(server, MESSAGES, add_generation_prompt=False)
    begun = post(server, "/tokenize", messages=BEGUN, continue_final_message=True)
    assert begun["tokens"] == rendered(server, BEGUN, add_generation_prompt=False, continue_final_message=True)


def test_a_chat_s_prompt_has_as_many_tokens_as_tokenize_says(server: Running) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1}
    usage = server.client.post("/v1/chat/completions", json=body).json()["usage"]
    assert post(server, "/tokenize", messages=MESSAGES)["count"] == usage["prompt_tokens"]


@pytest.mark.parametrize("times", [1, 200])
def test_each_token_s_text_is_told_where_asked(server: Running, times: int) -> None:
    answer = post(server, "/tokenize", prompt=TEXT * times, return_token_strs=True)
    assert answer["token_strs"] == [tokenizer(server).token_text(one) for one in answer["tokens"]]


@pytest.mark.parametrize(
    ("path", "fields", "blamed", "status"),
    [
        ("/tokenize", {}, "prompt", 400),
        ("/tokenize", {"prompt": None}, "prompt", 400),
        ("/tokenize", {"prompt": 3}, "prompt", 400),
        ("/tokenize", {"prompt": ["a"]}, "prompt", 400),
        ("/tokenize", {"prompt": "\ud800"}, "prompt", 400),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt", 400),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model", 404),
        ("/tokenize", {"messages": []}, "messages", 400),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template", 501),
        ("/detokenize", {}, "tokens", 400),
        ("/detokenize", {"tokens": "1"}, "tokens", 400),
        ("/detokenize", {"tokens": [1, 2, -1]}, "tokens", 400),
        ("/detokenize", {"tokens": [300]}, "tokens", 400),
        ("/detokenize", {"tokens": [10**30]}, "tokens", 400),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model", 404),
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused_with_the_name_of_the_field(
    server: Running, path: str, fields: dict[str, Any], blamed: str, status: int
) -> None:
    found, error = refusal(server, path, **fields)
    assert (found, error["param"]) == (status, blamed)
    assert len(error["message"]) < 300
