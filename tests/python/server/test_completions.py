"""POST /v1/completions answers as the engine does in process, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.completions import PATH, choices, events, in_process, post
from server.serving import Running, running_server

from fastpaged.server.settings import ServerSettings

PROMPT = "The cat is on the"
SEEDED: dict[str, Any] = {"seed": 7, "max_tokens": 24}
# Fields of a body that are params of the same name.
SAME: dict[str, dict[str, Any]] = {
    "nothing but a seed": {},
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.3},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.2},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.3},
    "one stop string": {"stop": "e"},
    "stop strings that are shown": {"stop": ["e", "st"], "include_stop_str_in_output": True},
    "stop tokens": {"stop_token_ids": list(range(40, 120))},
    "bad words": {"bad_words": ["the", "on"], "temperature": 0},
    "an end that is ignored": {"ignore_eos": True, "max_tokens": 60},
    "least tokens": {"min_tokens": 10, "stop_token_ids": list(range(150))},
    "special tokens shown": {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 60},
    "allowed tokens": {"allowed_token_ids": [50, 60, 70, 80]},
    "a big seed": {"seed": 2**64 - 1},
    "an interval": {"stream_interval": 4},
}


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Running]:
    with running_server(tiny_llama) as running:
        yield running


@pytest.mark.parametrize("fields", SAME.values(), ids=SAME)
def test_every_parameter_does_what_it_does_in_process(server: Running, fields: dict[str, Any]) -> None:
    asked = SEEDED | fields
    [expected] = in_process(server, PROMPT, **asked).outputs
    [whole] = post(server, prompt=PROMPT, return_token_ids=True, **asked)["choices"]
    [streamed] = choices(events(server, prompt=PROMPT, return_token_ids=True, **asked)).values()
    for answer in (whole, streamed):
        assert answer["text"] == expected.text
        assert answer["token_ids"] == expected.token_ids
        assert answer["finish_reason"] == expected.finish_reason
        assert answer["stop_reason"] == expected.stop_reason
        assert answer.get("seed") == expected.seed


def test_the_biases_of_tokens_have_strings_for_keys(server: Running) -> None:
    asked = {**SEEDED, "temperature": 0}
    [expected] = in_process(server, PROMPT, logit_bias={100: 50, 101: -100}, **asked).outputs
    [answer] = post(server, prompt=PROMPT, logit_bias={"100": 50, "101": -100}, return_token_ids=True, **asked)[
        "choices"
    ]
    assert answer["token_ids"] == expected.token_ids
    assert set(answer["token_ids"]) == {100}


def test_null_is_absent(server: Running) -> None:
    names = "temperature top_p top_k stop logprobs echo n best_of stream stream_options suffix user logit_bias model"
    nothing = dict.fromkeys(names.split())
    absent = post(server, prompt=PROMPT, seed=3)
    assert post(server, prompt=PROMPT, seed=3, **nothing)["choices"] == absent["choices"]
    assert absent["usage"]["completion_tokens"] <= 16  # the API's own default


def test_prompts_of_every_form_have_choices_in_order(server: Running) -> None:
    texts = ["The cat", "is on the mat and", "of"]
    ids = [server.engine.get_tokenizer().encode(text) for text in texts]
    asked = {"seed": 5, "n": 2, "max_tokens": 9}
    expected = [answer for text in texts for answer in in_process(server, text, **asked).outputs]
    for prompt in (texts, ids):
        answer = post(server, prompt=prompt, **asked)
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert [choice["text"] for choice in answer["choices"]] == [one.text for one in expected]
        assert [choice["seed"] for choice in answer["choices"]] == [one.seed for one in expected]
        assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert answer["usage"]["completion_tokens"] == sum(len(one.token_ids) for one in expected)
    [alone] = post(server, prompt=ids[1], **(asked | {"n": 1}))["choices"]
    assert alone["text"] == expected[2].text


def test_the_seed_that_an_answer_shows_makes_it_again(server: Running) -> None:
    for choice in post(server, prompt=PROMPT, n=3, max_tokens=12)["choices"]:
        [again] = post(server, prompt=PROMPT, seed=choice["seed"], max_tokens=12)["choices"]
        assert again["text"] == choice["text"]


def test_the_best_of_several_are_kept(server: Running) -> None:
    asked = {**SEEDED, "n": 2, "best_of": 5}
    expected = in_process(server, PROMPT, **asked).outputs
    for answers in (
        {choice["index"]: choice for choice in post(server, prompt=PROMPT, **asked)["choices"]},
        choices(events(server, prompt=PROMPT, **asked)),
    ):
        assert [answers[index]["text"] for index in range(2)] == [one.text for one in expected]


def test_a_beam_search_finds_what_it_finds_in_process(server: Running) -> None:
    asked = {"use_beam_search": True, "n": 2, "best_of": 4, "max_tokens": 8, "length_penalty": 0.5}
    asked["early_stopping"] = True
    expected = in_process(server, PROMPT, temperature=0, **asked).outputs
    answer = post(server, prompt=PROMPT, **asked)
    assert [choice["text"] for choice in answer["choices"]] == [one.text for one in expected]


def test_what_the_model_wants_of_sampling_is_for_those_who_say_nothing(tiny_llama: Path) -> None:
    wanted = {"temperature": 0.4, "top_p": 0.6, "top_k": 5, "max_new_tokens": 7}
    with running_server(tiny_llama, override_generation_config=wanted) as server:
        [choice] = post(server, prompt=PROMPT, seed=1)["choices"]
        [own] = in_process(server, PROMPT, seed=1, temperature=0.4, top_p=0.6, top_k=5, max_tokens=7).outputs
        assert choice["text"] == own.text
        [choice] = post(server, prompt=PROMPT, seed=1, temperature=1.5)["choices"]
        [own] = in_process(server, PROMPT, seed=1, temperature=1.5, top_p=0.6, top_k=5, max_tokens=7).outputs
        assert choice["text"] == own.text
        # Nothing is drawn in a beam search, so that what was wanted for drawing is of no use.
        beams = post(server, prompt=PROMPT, use_beam_search=True, n=2)["choices"]
        found = in_process(server, PROMPT, use_beam_search=True, n=2, temperature=0, max_tokens=7).outputs
        assert [beam["text"] for beam in beams] == [one.text for one in found]


def test_the_prompt_is_cut_only_where_somebody_says_so(server: Running) -> None:
    ids = server.engine.get_tokenizer().encode("The cat is on the mat and in the hat")
    for side, kept in (("left", ids[-4:]), (None, ids[-4:]), ("right", ids[:4])):
        answer = post(
            server, prompt=[ids], truncate_prompt_tokens=4, truncation_side=side, return_token_ids=True, max_tokens=2
        )
        assert answer["choices"][0]["prompt_token_ids"] == kept
        assert answer["usage"]["prompt_tokens"] == 4
    long = ids * 60
    [choice] = post(server, prompt=long, truncate_prompt_tokens=-1, max_tokens=10, return_token_ids=True)["choices"]
    room = server.engine.max_model_len - len(choice["prompt_token_ids"])
    assert choice["prompt_token_ids"] == long[room - server.engine.max_model_len :]
    assert len(choice["token_ids"]) <= room
    assert room >= 10


def test_usage_tells_what_was_found_in_the_cache_and_a_salt_keeps_it_apart(server: Running) -> None:
    prompt = "in the hat on the mat and of the cat in the hat"
    found = [
        post(server, prompt=prompt, max_tokens=1, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("a", "a", "b")
    ]
    assert found[0] == found[2] == 0
    assert found[1] >= 8


def test_an_answer_says_what_it_is_and_of_which_arithmetic(server: Running) -> None:
    first, second = (post(server, prompt=PROMPT, model="tiny", max_tokens=1) for _ in range(2))
    assert first["object"] == "text_completion"
    assert first["model"] == "tiny"
    assert first["id"].startswith("cmpl-")
    assert first["id"] != second["id"]
    assert first["system_fingerprint"] == second["system_fingerprint"] != ""
    assert first["choices"][0].keys() >= {"index", "text", "logprobs", "finish_reason", "stop_reason"}


def test_a_request_may_bring_its_id_in_the_body_or_a_header(server: Running) -> None:
    assert post(server, prompt=PROMPT, max_tokens=1, request_id="mine")["id"].endswith("mine")
    headed = server.client.post(PATH, json={"prompt": PROMPT, "max_tokens": 1}, headers={"X-Request-Id": "theirs"})
    assert headed.json()["id"].endswith("theirs")


@pytest.mark.parametrize("stream", [False, True])
def test_the_id_is_a_header_of_the_answer_where_the_server_says_so(tiny_llama: Path, stream: bool) -> None:
    with running_server(tiny_llama, ServerSettings(enable_request_id_headers=True)) as server:
        response = server.client.post(PATH, json={"prompt": PROMPT, "request_id": "mine", "stream": stream})
        assert response.headers["x-request-id"] == "cmpl-mine"
        assert '"id":"cmpl-mine"' in response.text


def test_time_that_is_up_ends_an_answer_with_what_it_has(server: Running) -> None:
    for field, reason in (("deadline", "deadline"), ("queue_timeout", "queue_timeout")):
        answer = post(server, prompt=[PROMPT, "in"], n=2, max_tokens=400, ignore_eos=True, **{field: 1e-9})
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"abort"}
        assert {choice["stop_reason"] for choice in answer["choices"]} == {reason}


@pytest.mark.parametrize("deadline", [None, 3600.0])
def test_no_request_has_more_time_than_the_server_allows(tiny_llama: Path, deadline: float | None) -> None:
    with running_server(tiny_llama, ServerSettings(max_request_seconds=0.001)) as server:
        [choice] = post(server, prompt=PROMPT, max_tokens=400, ignore_eos=True, deadline=deadline)["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "deadline")


def test_a_priority_goes_with_the_policy_that_looks_at_it(tiny_llama: Path) -> None:
    with running_server(tiny_llama, scheduling_policy="priority") as server:
        assert post(server, prompt=PROMPT, max_tokens=1, priority=-5)["choices"]
