"""What /v1/chat/completions refuses, and whom it blames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.chats import BEGUN, MESSAGES, PATH, chat, refusal
from server.serving import Running, running_server

from fastpaged.server.settings import ServerSettings

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
# Of each: the fields, the one that is blamed, a part of what is said, the status.
REFUSED: list[tuple[dict[str, Any], str, str, int]] = [
    ({"messages": []}, "messages", "non-empty", 400),
    ({"messages": "hello"}, "messages", "list", 400),
    ({"messages": None}, "messages", "list", 400),
    ({"messages": [{}]}, "messages", "messages[0]['role']", 400),
    ({"messages": [{"role": 1, "content": ""}]}, "messages", "messages[0]['role']", 400),
    ({"messages": [*MESSAGES, {"role": "user"}]}, "messages", "messages[2]['content']", 400),
    ({"messages": [{"role": "user", "content": None}]}, "messages", "messages[0]['content']", 400),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "'image_url'", 400),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "['content'][0]['text']", 400),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "lone surrogate", 400),
    ({"chat_template": "{{ 1 }}"}, "chat_template", "not taken from requests", 501),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'", 400),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "dictionary", 400),
    ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt", "must be false", 400),
    ({"top_logprobs": 2}, "top_logprobs", "unless logprobs is true", 400),
    ({"logprobs": False, "top_logprobs": 0}, "top_logprobs", "unless logprobs is true", 400),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", ">= 0", 400),
    ({"logprobs": True, "top_logprobs": 21}, "logprobs", "at most", 400),
    ({"logprobs": 1}, "logprobs", "boolean", 400),
    ({"max_tokens": 0}, "max_tokens", "got 0", 400),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "got 0", 400),
    ({"stream_options": {}}, "stream_options", "unless stream is true", 400),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "left out", 400),
    ({"stream": True, "use_beam_search": True}, "stream", "beam", 400),
    ({"tools": []}, "tools", "empty", 400),
    ({"tools": [TOOL]}, "tools", "not supported", 501),
    ({"tool_choice": "auto"}, "tool_choice", "without tools", 400),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema", 400),
    ({"response_format": {"type": "json_object"}}, "response_format", "not supported", 501),
    ({"model": "other"}, "model", "does not exist", 404),
]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


@pytest.mark.parametrize(("fields", "blamed", "said", "status"), REFUSED, ids=lambda value: repr(value)[:60])
def test_what_cannot_be_is_refused_with_the_name_of_the_field(
    server: Running, fields: dict[str, Any], blamed: str, said: str, status: int
) -> None:
    found, error = refusal(server, PATH, **{"messages": MESSAGES} | fields)
    assert (found, error["param"]) == (status, blamed)
    assert said in error["message"]
    assert len(error["message"]) < 600
    assert server.service.num_in_flight == 0


def test_a_conversation_that_is_too_long_is_told_the_longest(server: Running) -> None:
    status, error = refusal(server, PATH, messages=[{"role": "user", "content": "a " * 3000}])
    assert status == 400
    assert error["message"].startswith("This model's maximum context length is 512 tokens.")


def test_a_last_message_without_words_cannot_be_gone_on_with(server: Running) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": " "}]
    status, error = refusal(server, PATH, messages=messages, continue_final_message=True)
    assert (status, error["param"]) == (400, "messages")


def test_what_the_template_objects_to_is_the_caller_s_fault(tiny_llama: Path) -> None:
    template = "{% if messages|length > 2 %}{{ raise_exception('two at most') }}{% endif %}{{ messages[0]['content'] }}"
    with running_server(tiny_llama, ServerSettings(chat_template=template)) as server:
        assert chat(server)["choices"]
        status, error = refusal(server, PATH, messages=BEGUN)
        assert (status, error["param"]) == (400, "messages")
        assert "two at most" in error["message"]
        status, error = refusal(server, PATH, messages=[{"role": "user", "content": ""}])
        assert (status, error["param"]) == (400, "messages")
        assert "empty prompt" in error["message"]


def test_harmless_values_of_what_is_not_there_are_let_pass(server: Running) -> None:
    answer = chat(server, seed=1)["choices"][0]["message"]["content"]
    for fields in (
        {"response_format": {"type": "text"}},
        {"tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": None, "chat_template": None, "documents": None, "chat_template_kwargs": None},
    ):
        assert chat(server, seed=1, **fields)["choices"][0]["message"]["content"] == answer
