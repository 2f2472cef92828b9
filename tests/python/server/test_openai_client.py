"""The official client of OpenAI, over every endpoint, parameter and kind of stream; answers are those of the engine.

By default on a small random model; with FASTPAGED_TEST_MODEL on the model that it names (`make openai`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from server.serving import Running, running_server

from fastpaged import LLM, RequestOutput, SamplingParams
from fastpaged.server.settings import ServerSettings

MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
]
PROMPT = "Once upon a time"
KEY = "a-key-of-ours"
SETTINGS: dict[str, Any] = {"num_threads": 1, "num_blocks": 256, "block_size": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("FASTPAGED_TEST_MODEL")
    if named:
        return Path(named)
    from tiny_model import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("chatting"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Running]:
    settings = ServerSettings(served_model_names=("served", "other"), api_keys=(KEY,))
    with running_server(model, settings, isa=None, **SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    """The same engine, with nothing between."""
    with LLM(str(model), **SETTINGS) as made:
        yield made


def plain(llm: LLM, **params: Any) -> RequestOutput:
    return llm.generate([PROMPT], SamplingParams(**params))[0]


def plain_chat(llm: LLM, **params: Any) -> RequestOutput:
    return llm.chat(MESSAGES, SamplingParams(**params))[0]


# ---- models


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    assert [card.id for card in client.models.list()] == ["served", "other"]
    assert client.models.retrieve("other").owned_by == "fastpaged"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("third")


# ---- completions

SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 11},
    {"temperature": 1.3, "seed": 11, "top_p": 0.8},
    {"seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"seed": 5, "logit_bias": {"7": 50.0, "9": 50.0}},
    {"seed": 5, "n": 3},
    {"seed": 5, "stop": ["e", "a"]},
    {"seed": 5, "max_tokens": 3},
]
EXTRA: list[dict[str, Any]] = [
    {"top_k": 5, "seed": 3},
    {"min_p": 0.2, "seed": 3},
    {"repetition_penalty": 1.5, "temperature": 0.0},
    {"ignore_eos": True, "min_tokens": 4, "seed": 3},
    {"stop_token_ids": [5, 6, 7, 8], "seed": 3},
    {"bad_words": ["the", "and"], "seed": 3},
    {"allowed_token_ids": [11, 12, 13, 14, 15], "seed": 3},
    {"stop": ["e"], "include_stop_str_in_output": True, "seed": 3},
    {"skip_special_tokens": False, "seed": 3},
    {"best_of": 4, "n": 2, "seed": 3},
    {"use_beam_search": True, "best_of": 3, "n": 2, "temperature": 0.0},
    {"use_beam_search": True, "n": 2, "temperature": 0.0, "length_penalty": 2.0, "early_stopping": True},
]


def as_params(fields: dict[str, Any]) -> dict[str, Any]:
    known = dict(fields)
    if "logit_bias" in known:
        known["logit_bias"] = {int(key): value for key, value in known["logit_bias"].items()}
    return {"max_tokens": 12, **known}


@pytest.mark.parametrize("fields", SAMPLING, ids=repr)
def test_a_completion_is_the_engines(client: openai.OpenAI, llm: LLM, fields: dict[str, Any]) -> None:
    made = client.completions.create(model="served", prompt=PROMPT, logprobs=2, **{"max_tokens": 12, **fields})
    expected = plain(llm, logprobs=2, **as_params(fields))
    assert made.object == "text_completion"
    assert made.id.startswith("cmpl-")
    assert made.model == "served"
    for choice, answer in zip(made.choices, expected.outputs, strict=True):
        assert (choice.index, choice.text, choice.finish_reason) == (answer.index, answer.text, answer.finish_reason)
        assert choice.logprobs is not None
        assert answer.logprobs is not None
        entries = [entry[token] for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert choice.logprobs.token_logprobs == [entry.logprob for entry in entries]
        assert choice.logprobs.tokens == [entry.decoded_token for entry in entries]
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert made.usage.completion_tokens == sum(len(answer.token_ids) for answer in expected.outputs)


@pytest.mark.parametrize("fields", EXTRA, ids=repr)
def test_what_is_beyond_openai_s_api_is_the_engines_too(
    client: openai.OpenAI, llm: LLM, fields: dict[str, Any]
) -> None:
    body = {"max_tokens": 12, "return_token_ids": True, **fields}
    made = client.completions.create(model="served", prompt=PROMPT, extra_body=body)
    expected = plain(llm, **as_params(fields))
    assert [choice.text for choice in made.choices] == [answer.text for answer in expected.outputs]
    ids = [(choice.model_extra or {})["token_ids"] for choice in made.choices]
    assert ids == [answer.token_ids for answer in expected.outputs]


@pytest.mark.parametrize("fields", SAMPLING, ids=repr)
def test_a_streamed_completion_adds_up_to_the_whole_one(
    client: openai.OpenAI, llm: LLM, fields: dict[str, Any]
) -> None:
    fields = {"max_tokens": 12, **fields}
    expected = plain(llm, **as_params(fields))
    texts = [""] * len(expected.outputs)
    reasons: dict[int, str] = {}
    usage = None
    stream = client.completions.create(
        model="served", prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **fields
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == [answer.text for answer in expected.outputs]
    assert reasons == {answer.index: answer.finish_reason for answer in expected.outputs}
    assert usage is not None
    assert usage.completion_tokens == sum(len(answer.token_ids) for answer in expected.outputs)


def test_several_prompts_have_their_choices_one_after_the_other(client: openai.OpenAI, llm: LLM) -> None:
    prompts = [PROMPT, "The cat", "x"]
    made = client.completions.create(model="served", prompt=prompts, n=2, seed=4, max_tokens=6)
    expected = llm.generate(prompts, SamplingParams(n=2, seed=4, max_tokens=6))
    texts = [answer.text for output in expected for answer in output.outputs]
    assert [choice.text for choice in sorted(made.choices, key=lambda choice: choice.index)] == texts
    ids = [output.prompt_token_ids for output in expected]
    again = client.completions.create(model="served", prompt=ids, n=2, seed=4, max_tokens=6)
    assert [choice.text for choice in again.choices] == texts


def test_an_echo_has_the_prompt_with_its_logprobs(client: openai.OpenAI, llm: LLM) -> None:
    made = client.completions.create(model="served", prompt=PROMPT, echo=True, logprobs=1, max_tokens=3, temperature=0)
    expected = plain(llm, prompt_logprobs=1, logprobs=1, max_tokens=3, temperature=0.0)
    [choice] = made.choices
    assert choice.text == PROMPT + expected.outputs[0].text
    assert choice.logprobs is not None
    found: Any = choice.logprobs.token_logprobs
    assert found[0] is None
    assert expected.prompt_logprobs is not None
    entries = list(expected.prompt_logprobs)[1:]
    prompt = [
        entry[token].logprob
        for entry, token in zip(entries, expected.prompt_token_ids[1:], strict=True)
        if entry is not None
    ]
    assert found[1 : len(prompt) + 1] == prompt
    scored = client.completions.create(model="served", prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    assert scored.choices[0].text == PROMPT
    assert scored.choices[0].logprobs is not None
    assert scored.choices[0].logprobs.token_logprobs == found[: len(prompt) + 1]
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0


# ---- chat


@pytest.mark.parametrize("fields", SAMPLING, ids=repr)
def test_a_chat_answer_is_the_engines(client: openai.OpenAI, llm: LLM, fields: dict[str, Any]) -> None:
    fields = {"max_tokens": 12, **fields}
    made = client.chat.completions.create(model="served", messages=MESSAGES, logprobs=True, top_logprobs=2, **fields)
    expected = plain_chat(llm, logprobs=2, **as_params(fields))
    assert made.object == "chat.completion"
    for choice, answer in zip(made.choices, expected.outputs, strict=True):
        assert choice.message.role == "assistant"
        assert (choice.message.content, choice.finish_reason) == (answer.text, answer.finish_reason)
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert answer.logprobs is not None
        entries = [entry[token] for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert [token.logprob for token in choice.logprobs.content] == [entry.logprob for entry in entries]
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(expected.prompt_token_ids)


@pytest.mark.parametrize("fields", SAMPLING, ids=repr)
def test_a_streamed_chat_answer_adds_up_to_the_whole_one(
    client: openai.OpenAI, llm: LLM, fields: dict[str, Any]
) -> None:
    fields = {"max_tokens": 12, **fields}
    expected = plain_chat(llm, **as_params(fields))
    texts = [""] * len(expected.outputs)
    roles: dict[int, str] = {}
    for chunk in client.chat.completions.create(model="served", messages=MESSAGES, stream=True, **fields):
        for choice in chunk.choices:
            if choice.delta.role:
                assert choice.index not in roles
                assert texts[choice.index] == ""
                roles[choice.index] = choice.delta.role
            texts[choice.index] += choice.delta.content or ""
    assert texts == [answer.text for answer in expected.outputs]
    assert set(roles.values()) == {"assistant"}
    assert len(roles) == len(texts)


def test_the_stream_helper_finds_the_whole_answer(client: openai.OpenAI, llm: LLM) -> None:
    """Which takes no answer that was cut: this one ends with a token that it would come to anyway."""
    ending = plain_chat(llm, max_tokens=8, seed=2, ignore_eos=True).outputs[0].token_ids[5]
    fields: dict[str, Any] = {"max_tokens": 8, "seed": 2}
    extra = {"stop_token_ids": [ending], "ignore_eos": True}
    with client.chat.completions.stream(model="served", messages=MESSAGES, extra_body=extra, **fields) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == plain_chat(llm, **fields, **extra).outputs[0].text


@pytest.mark.skipif("FASTPAGED_TEST_MODEL" not in os.environ, reason="a small random model knows no capitals")
def test_a_real_model_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    made = client.chat.completions.create(model="served", messages=question, max_tokens=20, temperature=0)
    assert "Paris" in (made.choices[0].message.content or "")


def test_a_chat_answer_may_be_as_long_as_the_context(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="served", messages=MESSAGES, max_completion_tokens=5, temperature=0)
    assert made.usage is not None
    assert made.usage.completion_tokens <= 5


def test_a_second_turn_finds_the_first_in_the_cache(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="served", messages=MESSAGES, max_tokens=8, temperature=0)
    said = {"role": "assistant", "content": first.choices[0].message.content or "x"}
    more = [*MESSAGES, said, {"role": "user", "content": "And of Spain?"}]
    second = client.chat.completions.create(model="served", messages=more, max_tokens=8, temperature=0)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 8


# ---- the asynchronous client, many at once


def test_many_asynchronous_streams_at_once_are_each_as_alone(server: Running, llm: LLM) -> None:
    expected = {seed: plain(llm, seed=seed, max_tokens=20).outputs[0].text for seed in range(12)}

    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(model="served", prompt=PROMPT, seed=seed, max_tokens=20, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in expected))

    assert asyncio.run(all_of_them()) == list(expected.values())


# ---- errors

BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 3.0}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"n": 0}, "n"),
    ({"presence_penalty": 9.0}, "presence_penalty"),
    ({"logit_bias": {"x": 1.0}}, "logit_bias"),
    ({"logprobs": -3}, "logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=repr)
def test_a_bad_request_says_which_argument_is_wrong(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="served", prompt=PROMPT, **fields)
    body: Any = caught.value.body
    assert body["type"] == "BadRequestError"
    assert body["code"] == 400
    assert param in body["message"]


def test_errors_are_those_that_the_client_knows(server: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt=PROMPT)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0).models.list()
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="served", messages=MESSAGES, tools=tools)
    assert caught.value.status_code == 501
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="served", prompt=[5] * 100_000)


def test_the_raw_response_has_what_the_client_looks_for(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="served", prompt=PROMPT, max_tokens=1)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].finish_reason in ("length", "stop")
