"""The door of the engine: what it refuses, and that it says why."""

from __future__ import annotations

from typing import Any

import pytest
from engine.fakes import EOS, VOCAB_SIZE, ToyTokenizer

from fastpaged.engine.admission import Admission
from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams

MAX_MODEL_LEN = 32
NUM_BLOCKS, BLOCK_SIZE = 6, 4
KV_CAPACITY = NUM_BLOCKS * BLOCK_SIZE


def door(*, max_logprobs: int = 5, num_blocks: int = NUM_BLOCKS) -> Admission:
    tokenizer: Any = ToyTokenizer()
    return Admission(
        tokenizer,
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_logprobs=max_logprobs,
        max_branches=8,
    )


def refusal(prompt: Any, params: Any = None, *, request_id: Any = "r", **door_args: Any) -> str:
    with pytest.raises(InvalidRequestError) as error:
        door(**door_args).admit(request_id, prompt, SamplingParams() if params is None else params)
    return str(error.value)


@pytest.mark.parametrize("prompt", ["AB", [65, 66], (65, 66), {"prompt": "AB"}, {"prompt_token_ids": [65, 66]}])
def test_every_form_of_prompt_gives_the_same_ids(prompt: Any) -> None:
    assert door().admit("r", prompt, SamplingParams()).prompt_token_ids == [65, 66]


def test_text_beside_ids_is_shown_and_the_ids_run() -> None:
    request = door().admit("r", {"prompt": "shown", "prompt_token_ids": [65]}, SamplingParams())
    assert (request.prompt, request.prompt_token_ids) == ("shown", [65])


def test_a_salt_goes_with_text_or_ids_and_is_none_where_there_is_none() -> None:
    for prompt in ({"prompt": "A"}, {"prompt_token_ids": [65]}, {"prompt": "A", "prompt_token_ids": [65]}):
        assert door().admit("r", {**prompt, "cache_salt": "tenant"}, SamplingParams()).cache_salt == "tenant"
        assert door().admit("r", prompt, SamplingParams()).cache_salt == ""
    assert door().admit("r", "A", SamplingParams()).cache_salt == ""


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt must not be empty, got ''"),
        ([], "prompt must hold at least one token, got none"),
        ({"prompt_token_ids": []}, "prompt_token_ids must hold at least one token, got none"),
        ({"prompt": ""}, "prompt must not be empty"),
        ({}, "got a dict with keys []"),
        ({"text": "A"}, "got a dict with keys ['text']"),
        ({"prompt": "A", "n": 1}, "got a dict with keys ['prompt', 'n']"),
        ({"cache_salt": "s"}, "got a dict with keys ['cache_salt']"),
        ({"prompt": "A", "cache_salt": ""}, "prompt['cache_salt'] must be a non-empty string, got ''"),
        ({"prompt": "A", "cache_salt": None}, "prompt['cache_salt'] must be a non-empty string, got None"),
        ({"prompt": "A", "cache_salt": b"s"}, "prompt['cache_salt'] must be a non-empty string, got b's'"),
        ({"prompt": "A", "cache_salt": "\ud800"}, "prompt['cache_salt'] must be valid Unicode, got the lone surrogate"),
        ({"prompt": 7}, "prompt['prompt'] must be a string, got int"),
        ({"prompt_token_ids": "A"}, "prompt['prompt_token_ids'] must be a list of ints, got str"),
        (7, "got int"),
        (None, "got NoneType"),
        (b"A", "got bytes"),
        (["A"], "prompt[0] must be an int, got 'A'"),
        ([65, 66.0], "prompt[1] must be an int, got 66.0"),
        ([True], "prompt[0] must be an int, got True"),
        ("A\ud800", "got the lone surrogate '\\ud800' at position 1"),
    ],
)
def test_a_prompt_of_a_wrong_kind_is_refused_by_what_was_given(prompt: Any, message: str) -> None:
    assert message in refusal(prompt)


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 2**40])
def test_the_first_id_out_of_vocabulary_is_named_with_its_position(bad: int) -> None:
    message = refusal([65, bad, -7])
    assert message == f"prompt[1] must be a token id in [0, {VOCAB_SIZE}), got {bad}"


def test_a_tokenizer_that_goes_beyond_the_model_is_caught_too() -> None:
    assert "prompt[1] must be a token id in [0, 128), got 233" in refusal("Aé")


def test_a_prompt_over_the_context_names_the_limit_its_length_and_what_would_fit() -> None:
    message = refusal("A" * MAX_MODEL_LEN, num_blocks=99)
    assert message == (
        "This model's maximum context length is 32 tokens. However, the prompt has 32 tokens, and at least 1 is needed "
        "for the answer. Please shorten the prompt to at most 31 tokens."
    )
    door(num_blocks=99).admit("r", "A" * (MAX_MODEL_LEN - 1), SamplingParams())


def test_a_prompt_over_the_kv_pool_names_the_pool_its_length_and_what_would_fit() -> None:
    message = refusal("A" * (KV_CAPACITY + 1))
    assert message == (
        "The KV pool holds 24 tokens, 6 blocks of 4. However, the prompt has 25 tokens. Please shorten the prompt to "
        "at most 24 tokens, or give the engine at least 7 num_blocks, or as much kv_cache_memory_bytes."
    )
    door().admit("r", "A" * KV_CAPACITY, SamplingParams())
    door(num_blocks=7).admit("r", "A" * (KV_CAPACITY + 1), SamplingParams())


def test_a_prompt_over_both_limits_is_told_the_smaller_one() -> None:
    assert "Please shorten the prompt to at most 24 tokens." in refusal("A" * MAX_MODEL_LEN)
    door().admit("r", "A" * 24, SamplingParams())


@pytest.mark.parametrize("request_id", ["", None, 7])
def test_a_request_id_is_a_non_empty_string(request_id: Any) -> None:
    assert f"request_id must be a non-empty string, got {request_id!r}" in refusal("A", request_id=request_id)


def test_params_of_another_type_are_refused() -> None:
    assert "sampling_params must be a SamplingParams, got dict" in refusal("A", {"temperature": 0})


@pytest.mark.parametrize(("max_tokens", "expected"), [(1, 1), (22, 22), (23, 22), (None, 22)])
def test_max_tokens_is_cut_to_the_rest_of_the_context(max_tokens: int | None, expected: int) -> None:
    request = door().admit("r", "A" * 10, SamplingParams(max_tokens=max_tokens))
    assert request.max_tokens == expected


def test_ignore_eos_leaves_nothing_to_stop_at() -> None:
    assert door().admit("r", "A", SamplingParams()).stop_token_ids == [EOS]
    assert door().admit("r", "A", SamplingParams(ignore_eos=True)).stop_token_ids == []


def test_stop_tokens_end_an_answer_beside_end_of_sequence_and_under_ignore_eos_alone() -> None:
    own = SamplingParams(stop_token_ids=[9, EOS, 1])
    assert door().admit("r", "A", own).stop_token_ids == [1, EOS, 9]
    ignoring = SamplingParams(stop_token_ids=[9, 1], ignore_eos=True)
    assert door().admit("r", "A", ignoring).stop_token_ids == [1, 9]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [1, 128]}, "stop_token_ids[1] must be a token id in [0, 128), got 128"),
        ({"allowed_token_ids": [1, 128]}, "allowed_token_ids[1] must be a token id in [0, 128), got 128"),
        ({"logit_bias": {1: 1.0, 128: 1.0}}, "a key of logit_bias must be a token id in [0, 128), got 128"),
        ({"bad_words": ["a", "\ud800"]}, "bad_words[1] must be valid Unicode, got the lone surrogate '\\ud800' at"),
    ],
)
def test_params_that_do_not_fit_the_model_are_refused_by_name(params: Any, message: str) -> None:
    assert message in refusal("A", SamplingParams(**params))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("AB", [[65, 66], [32, 65, 66]]),
        (" AB", [[65, 66], [32, 65, 66]]),
        ("  A", [[65], [32, 65]]),
        (" ", [[32]]),
        ("é", []),  # no token of the model
    ],
)
def test_a_bad_word_is_barred_with_and_without_a_space_before_it(word: str, expected: list[list[int]]) -> None:
    assert door().admit("r", "A", SamplingParams(bad_words=[word])).bad_words == expected
    assert door().admit("r", "A", SamplingParams(bad_words=[word, word])).bad_words == expected


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [EOS], "min_tokens": 1},
        {"allowed_token_ids": [EOS, 9], "min_tokens": 1, "stop_token_ids": [9]},
        {"allowed_token_ids": [65, 66], "bad_words": ["A", "B"]},
        {"allowed_token_ids": [65, EOS], "bad_words": ["A"], "min_tokens": 2},
    ],
)
def test_params_that_leave_no_token_are_refused(params: Any) -> None:
    assert "allowed_token_ids must hold a token that neither" in refusal("A", SamplingParams(**params))


def test_barring_the_whole_vocabulary_is_refused_and_all_but_one_is_not() -> None:
    all_but_one = SamplingParams(stop_token_ids=range(VOCAB_SIZE - 1), min_tokens=1)
    door().admit("r", "A", all_but_one)
    everything = SamplingParams(stop_token_ids=range(VOCAB_SIZE), min_tokens=1)
    assert "must leave a token of the vocabulary, got all 128 of it" in refusal("A", everything)


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [EOS]},
        {"allowed_token_ids": [EOS], "min_tokens": 1, "ignore_eos": True},
        {"allowed_token_ids": [65], "bad_words": ["AA"]},
        {"allowed_token_ids": [EOS, 65], "min_tokens": 1},
    ],
)
def test_params_that_leave_one_token_are_admitted(params: Any) -> None:
    door().admit("r", "A", SamplingParams(**params))


@pytest.mark.parametrize(("asked", "max_logprobs", "expected"), [(None, 5, None), (0, 5, 0), (5, 5, 5), (-1, -1, 128)])
def test_logprobs_within_the_limit_are_granted(asked: int | None, max_logprobs: int, expected: int | None) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        request = door(max_logprobs=max_logprobs).admit("r", "A", SamplingParams(**{name: asked}))  # type: ignore[arg-type]
        assert getattr(request, f"num_{name}") == expected
        assert {request.num_logprobs, request.num_prompt_logprobs} == {expected, None}


@pytest.mark.parametrize("asked", [6, -1])
def test_logprobs_over_the_limit_name_both(asked: int) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        message = refusal("A", SamplingParams(**{name: asked}))  # type: ignore[arg-type]
        assert message.startswith(f"{name} must be at most max_logprobs = 5, got {asked}")


def test_prompt_logprobs_that_would_take_too_much_name_need_limit_and_what_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastpaged.engine.admission.MAX_PROMPT_LOGPROBS_BYTES", 10 * 8 * 6)
    assert refusal("A" * 11, SamplingParams(prompt_logprobs=5)) == (
        "prompt_logprobs must take at most 480 bytes, got 5: 5 alternatives of 11 tokens need 528. prompt_logprobs = 4 "
        "would fit this prompt, and a prompt of 10 tokens this many"
    )
    assert "got -1: 128 alternatives of 1 tokens need 1032." in refusal(
        "A", SamplingParams(prompt_logprobs=-1), max_logprobs=-1
    )
    door().admit("r", "A" * 11, SamplingParams(prompt_logprobs=4))
    door().admit("r", "A" * 10, SamplingParams(prompt_logprobs=5))
    door().admit("r", "A" * 23, SamplingParams(logprobs=5))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"n": 9}, "n must be at most 8"),
        ({"n": 2, "best_of": 9}, "best_of must be at most 8"),
        ({"n": 9, "use_beam_search": True}, "n, the beam width, must be at most 8"),
    ],
)
def test_a_request_takes_no_more_sequences_than_go_into_one_step(params: dict[str, Any], name: str) -> None:
    said = refusal("AB", SamplingParams(**params))
    assert said.startswith(name)
    assert said.endswith("got 9")
    assert "max_num_seqs" in said
    most = SamplingParams(
        **{key: min(value, 8) if key != "use_beam_search" else value for key, value in params.items()}
    )
    assert door().admit("r", "AB", most).params.num_branches == 8
