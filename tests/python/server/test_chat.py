"""/v1/chat/completions: what it answers is what the engine answers to the prompt that the chat template makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.chats import BEGUN, MESSAGES, added_up, chat, chat_events, chat_in_process, rendered
from server.completions import in_process
from server.serving import Running, running_server

from fastpaged.server.settings import ServerSettings

TEMPLATE = "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}{{ mood }}"


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_and_a_whole_answer_are_the_engine_s(server: Running, n: int, seed: int) -> None:
    body = {"n": n, "seed": seed, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    whole = chat(server, **body)["choices"]
    streamed = added_up(chat_events(server, **body))
    expected = chat_in_process(server, n=n, seed=seed, logprobs=2).outputs
    assert len(whole) == len(streamed) == n
    for choice, answer in zip(whole, expected, strict=True):
        piece = streamed[answer.index]
        assert choice["index"] == answer.index
        assert choice["message"] == {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
            "reasoning": None,
            "tool_calls": [],
        }
        assert (piece["role"], piece["content"]) == ("assistant", answer.text)
        assert choice["token_ids"] == piece["token_ids"] == answer.token_ids
        assert choice["logprobs"]["content"] == piece["logprobs"]
        for name in ("finish_reason", "stop_reason", "seed"):
            assert choice[name] == piece[name] == getattr(answer, name)


def test_logprobs_have_the_bytes_of_each_token_be_it_half_a_character(server: Running) -> None:
    tokenizer = server.engine.get_tokenizer()
    allowed = tokenizer.encode("é漢🙂 the", add_special_tokens=False)
    body: dict[str, Any] = {"seed": 3, "allowed_token_ids": allowed, "max_tokens": 30, "ignore_eos": True}
    [choice] = chat(server, logprobs=True, top_logprobs=3, return_token_ids=True, **body)["choices"]
    [answer] = chat_in_process(server, logprobs=3, **body).outputs
    assert answer.logprobs is not None
    halves = 0
    for shown, token, entry in zip(choice["logprobs"]["content"], answer.token_ids, answer.logprobs, strict=True):
        assert shown["logprob"] == entry[token].logprob
        assert bytes(shown["bytes"]) == tokenizer.token_bytes(token)
        best = sorted(entry.items(), key=lambda item: item[1].rank)[:3]
        assert [top["logprob"] for top in shown["top_logprobs"]] == [found.logprob for _, found in best]
        assert [bytes(top["bytes"]) for top in shown["top_logprobs"]] == [tokenizer.token_bytes(one) for one, _ in best]
        halves += shown["token"] == "\ufffd"
    assert halves > 5
    said = b"".join(bytes(shown["bytes"]) for shown in choice["logprobs"]["content"])
    assert said.decode("utf-8", "replace").rstrip("\ufffd") == choice["message"]["content"].rstrip("\ufffd")


def test_logprobs_without_alternatives_have_none(server: Running) -> None:
    [choice] = chat(server, logprobs=True)["choices"]
    assert all(shown["top_logprobs"] == [] for shown in choice["logprobs"]["content"])
    assert chat(server)["choices"][0]["logprobs"] is None


def test_max_completion_tokens_is_max_tokens_newer_name_and_goes_first(server: Running) -> None:
    for counts in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 9}, {"max_tokens": 3}):
        answer = chat(server, **{"max_tokens": None, "ignore_eos": True} | counts)
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["choices"][0]["finish_reason"] == "length"


def test_an_answer_with_no_limit_fills_the_context(server: Running) -> None:
    answer = chat(server, max_tokens=None, ignore_eos=True, temperature=0)
    assert answer["usage"]["total_tokens"] == server.engine.max_model_len


def test_contents_in_parts_are_their_lines(server: Running) -> None:
    parts = [{"type": "text", "text": "The"}, {"type": "text", "text": "cat"}]
    whole = chat(server, messages=[{"role": "user", "content": parts}], seed=1, return_token_ids=True)
    assert whole["prompt_token_ids"] == rendered(server, [{"role": "user", "content": "The\ncat"}])


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_was_begun_is_gone_on_with(server: Running, stream: bool) -> None:
    body = {"messages": BEGUN, "continue_final_message": True, "seed": 4}
    prompt = rendered(server, BEGUN, add_generation_prompt=False, continue_final_message=True)
    text = in_process(server, {"prompt_token_ids": prompt}, seed=4, max_tokens=12).outputs[0].text
    for echo in (False, True):
        if stream:
            said = added_up(chat_events(server, **body, echo=echo))[0]
        else:
            said = chat(server, **body, echo=echo)["choices"][0]["message"]
        assert (said["role"], said["content"]) == ("assistant", ("It is" if echo else "") + text)


def test_only_words_of_the_role_that_answers_are_echoed(server: Running) -> None:
    expected = chat(server, seed=4)["choices"][0]["message"]["content"]
    assert chat(server, seed=4, echo=True)["choices"][0]["message"]["content"] == expected
    begun = {"messages": BEGUN, "seed": 4, "echo": True}
    assert chat(server, **begun)["choices"][0]["message"]["content"].startswith("It is")


def test_where_no_answer_is_begun_it_is_still_who_spoke_last(server: Running) -> None:
    answer = chat(server, add_generation_prompt=False, return_token_ids=True)
    assert answer["prompt_token_ids"] == rendered(server, MESSAGES, add_generation_prompt=False)
    assert answer["choices"][0]["message"]["role"] == "user"


def test_usage_stands_in_a_last_event_and_where_asked_in_each(server: Running) -> None:
    usage = chat(server, seed=6)["usage"]
    assert all("usage" not in event for event in chat_events(server, seed=6))
    *events, last = chat_events(server, seed=6, stream_options={"include_usage": True})
    assert all(event["choices"] for event in events)
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == usage[name]
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [event["usage"]["completion_tokens"] for event in chat_events(server, seed=6, stream_options=options)]
    assert counts == sorted(counts)
    assert counts[-1] == usage["completion_tokens"]


def test_prompt_logprobs_are_of_the_rendered_prompt(server: Running) -> None:
    answer = chat(server, prompt_logprobs=1, max_tokens=1, temperature=0)
    expected = chat_in_process(server, prompt_logprobs=1, max_tokens=1, temperature=0.0)
    assert expected.prompt_logprobs is not None
    first, *rest = answer["prompt_logprobs"]
    assert first is None
    for shown, entry in zip(rest, list(expected.prompt_logprobs)[1:], strict=True):
        assert entry is not None
        assert {int(token): found["logprob"] for token, found in shown.items()} == {
            token: found.logprob for token, found in entry.items()
        }


@pytest.mark.parametrize("length", [10, 6000])
def test_the_server_s_own_template_and_role_go_before_the_model_s(tiny_llama: Path, length: int) -> None:
    """A long conversation is rendered on another thread, to the same prompt."""
    settings = ServerSettings(chat_template=TEMPLATE, response_role="narrator")
    with running_server(tiny_llama, settings, num_blocks=1024, max_model_len=512) as server:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "x" * length}]
        body = {"messages": messages, "chat_template_kwargs": {"mood": "gay"}, "truncate_prompt_tokens": 100}
        answer = chat(server, **body, return_token_ids=True)
        prompt = server.engine.get_tokenizer().encode("[user]" + "x" * length + "gay", add_special_tokens=False)
        assert answer["prompt_token_ids"] == prompt[-100:]
        assert answer["choices"][0]["message"]["role"] == "narrator"


def test_documents_and_names_reach_the_template(tiny_llama: Path) -> None:
    template = "{% for one in documents or [] %}<{{ one['title'] }}>{% endfor %}{{ mood }}!"
    with running_server(tiny_llama, ServerSettings(chat_template=template)) as server:
        body = {"documents": [{"title": "a"}, {"title": "b"}], "chat_template_kwargs": {"mood": "calm"}}
        answer = chat(server, **body, return_token_ids=True)
        assert server.engine.get_tokenizer().decode(answer["prompt_token_ids"]) == "<a><b>calm!"
