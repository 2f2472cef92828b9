"""SamplingParams: the rules of each field, at its edges."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpaged.errors import FastpagedError, InvalidRequestError
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

# field -> values just outside, and of the wrong kind
REFUSED: dict[str, list[object]] = {
    "presence_penalty": [-2.001, 2.001, math.nan, "1", None, True],
    "frequency_penalty": [-2.001, 2.001, math.nan, "1", None, True],
    "repetition_penalty": [0.0, -1.0, math.nan, math.inf, 1e-39, 1e39, "1", None, True],
    "temperature": [-0.001, 2.001, math.nan, math.inf, "hot", None, True],
    "top_p": [0.0, -0.1, 1.001, math.nan, "1", None],
    "top_k": [-2, 1.5, "3", None, 2**31, True],
    "min_p": [-0.001, 1.001, math.nan, None],
    "seed": [-2, 2**64, 1.0, "7", True],
    "stop": ["", 7, b"a", {"a": 1}],
    "stop_token_ids": [7, "7", {7: 7}],
    "bad_words": ["", "word", 7, {"a": 1}],
    "include_stop_str_in_output": [1, None],
    "max_tokens": [0, -1, 2.0, "9", 2**31],
    "min_tokens": [-1, 17, 1.0, None, True],
    "logprobs": [-2, 1.0, "all", False],
    "prompt_logprobs": [-2, 1.0, "all", False, 2**31],
    "ignore_eos": [1, None, "yes"],
    "skip_special_tokens": [0, None],
    "detokenize": [0, None],
    "spaces_between_special_tokens": [0, None],
    "output_kind": ["DELTA", 1, None],
    "logit_bias": [[(1, 2.0)], 7, "1"],
    "allowed_token_ids": [(), 7, "7", {7: 7}],
    "n": [0, -1, 16385, 1.0, "1", None, True],
    "stream_interval": [0, -1, 1.5, "2", True, 2**31],
    "best_of": [0, 16385, "2", True],
    "use_beam_search": [1, 0, "yes"],
    "length_penalty": [0.0, 0.5, math.nan, math.inf, 16.5, -17, "1", None, True],
    "early_stopping": [True, "never", "yes", 0, 1, None],
    "logprob_token_ids": [[1, 2], []],
    "prompt_logprob_token_ids": [[[1], [2]]],
    "prompt_logprob_start": [3, False],
    "flat_logprobs": [True, 0],
    "structured_outputs": [{"json": {}}],
    "guided_decoding": [{"regex": "a"}],
    "truncate_prompt_tokens": [8, -1],
    "logits_processors": [[print], []],
    "extra_args": [{"a": 1}, 0],
    "thinking_token_budget": [0, -2, 100, True],
    "repetition_detection": [{"min_count": 2}],
    "watermarking": [True, 0],
    "routed_experts_prompt_start": [0],
    "trace_decode_token_ids": [[1]],
    "skip_reading_prefix_cache": [0, "no"],
    "skip_clone": [0],
}
ACCEPTED: dict[str, list[object]] = {
    "presence_penalty": [-2, 2.0, 0],
    "frequency_penalty": [-2, 2.0, 0],
    "repetition_penalty": [1e-37, 1, 3e38],
    "temperature": [0, 0.0, 0.01, 1, 2, 2.0],
    "top_p": [1e-6, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 0.0, 1.0],
    "seed": [None, -1, 0, 2**64 - 1],
    "stop": [None, "a", [], ["a", "b"], ("a",)],
    "stop_token_ids": [None, [], [0, 2**31 - 1], (1,), {1}, range(3)],
    "bad_words": [None, [], ["a", "b c"], ("a",), ["a"] * 1024, ["a" * 256]],
    "include_stop_str_in_output": [True, False],
    "max_tokens": [None, 1, 2**31 - 1],
    "min_tokens": [0, 1, 16],
    "logprobs": [None, -1, 0, True, 5],
    "prompt_logprobs": [None, -1, 0, True, 5, 2**31 - 1],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
    "detokenize": [True, False],
    "spaces_between_special_tokens": [True, False],
    "output_kind": list(RequestOutputKind),
    "logit_bias": [None, {}, {0: 1, 2**31 - 1: -1.5}, {1: math.inf}],
    "allowed_token_ids": [None, [0], (1, 2**31 - 1), {1}, range(3)],
    "n": [1, 2, 16384],
    "stream_interval": [None, 1, 7, 2**31 - 1],
    "best_of": [None, 1, 2, 16384],
    "use_beam_search": [False, None, True],
    "length_penalty": [1, 1.0],
    "early_stopping": [False],
    "logprob_token_ids": [None],
    "prompt_logprob_token_ids": [None],
    "prompt_logprob_start": [None, 0],
    "flat_logprobs": [False, None],
    "structured_outputs": [None],
    "guided_decoding": [None],
    "truncate_prompt_tokens": [None],
    "logits_processors": [None],
    "extra_args": [None, {}],
    "thinking_token_budget": [None, -1],
    "repetition_detection": [None],
    "watermarking": [None, False],
    "routed_experts_prompt_start": [None],
    "trace_decode_token_ids": [None],
    "skip_reading_prefix_cache": [None, False, True],
    "skip_clone": [False, None, True],
}
# What a refusal says is allowed, or why there is nothing of the kind.
SAID: list[tuple[str, object, str]] = [
    ("n", 0, "an integer from 1 to 16384"),
    ("n", 16385, "an integer from 1 to 16384"),
    ("best_of", 0, "None, or an integer from n = 1 to 16384"),
    ("presence_penalty", 2.5, "a number in [-2, 2]"),
    ("frequency_penalty", -2.5, "a number in [-2, 2]"),
    ("repetition_penalty", 0.0, "a finite number > 0, within float32"),
    ("repetition_penalty", math.inf, "a finite number > 0, within float32"),
    ("temperature", 2.5, "a number in [0, 2]"),
    ("temperature", math.nan, "a number in [0, 2]"),
    ("top_p", 0.0, "a number in (0, 1]"),
    ("top_k", -2, "0 or -1 (off), or an integer from 1"),
    ("min_p", 1.5, "a number in [0, 1]"),
    ("seed", -2, "None or -1 (drawn), or an integer from 0 to 2**64 - 1"),
    ("stop", "", "None, a non-empty string, or a list of them"),
    ("stop_token_ids", 5, "None, or a list of token ids"),
    ("bad_words", "word", "None, or a list of at most 1024 non-empty strings"),
    ("max_tokens", 0, "None (the rest of the context), or an integer from 1"),
    ("min_tokens", 17, "an integer from 0 to max_tokens = 16"),
    ("logprobs", -2, "None (off), -1 (the whole vocabulary), or an integer >= 0"),
    ("prompt_logprobs", -2, "None (off), -1 (the whole vocabulary), or an integer >= 0"),
    ("output_kind", "DELTA", "a RequestOutputKind"),
    ("logit_bias", 7, "None, or a dict of token ids and numbers"),
    ("allowed_token_ids", (), "None, or a list of at least one token id"),
    ("stream_interval", 0, "None (the engine's), or an integer from 1"),
    ("use_beam_search", 1, "True or False"),
    ("length_penalty", 2.0, "1.0 without use_beam_search"),
    ("early_stopping", "never", "False without use_beam_search"),
    ("early_stopping", "no", "True, False or 'never'"),
    ("logprob_token_ids", [1], "None (logprobs of chosen ids are not there yet; logprobs=-1 holds every token's)"),
    ("prompt_logprob_token_ids", [[1]], "None (prompt logprobs of chosen ids are not there yet; see prompt_logprobs)"),
    ("prompt_logprob_start", 4, "None or 0 (prompt logprobs begin with the prompt"),
    ("flat_logprobs", True, "False or None (logprobs are a list of {token id: Logprob} only)"),
    ("structured_outputs", {"json": {}}, "None (structured outputs are not there yet)"),
    ("guided_decoding", {"regex": "a"}, "None (it became structured_outputs, which are not there yet)"),
    ("truncate_prompt_tokens", 8, "None (a prompt is never cut in silence; cut its token ids"),
    ("logits_processors", [print], "None (no Python runs per token; see logit_bias, bad_words and allowed_token_ids)"),
    ("extra_args", {"a": 1}, "None or {} (there is nothing that would read them)"),
    ("thinking_token_budget", 9, "None or -1 (thinking is not told from answering; see max_tokens)"),
    ("repetition_detection", {}, "None (repetition is not watched for; see repetition_penalty)"),
    ("watermarking", True, "None or False (answers are not marked)"),
    ("routed_experts_prompt_start", 0, "None (there is no model with experts)"),
    ("trace_decode_token_ids", [1], "None (an answer is not made to follow given tokens)"),
    ("skip_reading_prefix_cache", 1, "None, True or False"),
    ("skip_clone", 0, "False or True or None (params are frozen and not cloned)"),
]
# What is kept of a value in another form.
KEPT: list[tuple[str, object, object]] = [
    ("temperature", 1, 1.0),
    ("temperature", 9e-6, 0.0),
    ("top_k", -1, 0),
    ("seed", -1, None),
    ("stop", None, ()),
    ("stop", "a", ("a",)),
    ("stop", ["a", "b"], ("a", "b")),
    ("stop_token_ids", [5, 3, 5], (5, 3)),
    ("bad_words", ["a"], ("a",)),
    ("logprobs", True, 1),
    ("logprobs", 0, 0),
    ("prompt_logprobs", True, 1),
    ("logprobs", -1, -1),
    ("logit_bias", {1: -250, 2: 250, 3: 1}, {1: -100.0, 2: 100.0, 3: 1.0}),
    ("allowed_token_ids", [9, 1, 9], (9, 1)),
    ("max_tokens", None, None),
    ("best_of", 1, 1),
    ("use_beam_search", None, False),
    ("length_penalty", 1, 1.0),
    ("stream_interval", 3, 3),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in REFUSED.items() for value in values])
def test_a_value_out_of_range_is_refused_by_name_and_value(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert str(refusal.value).startswith(f"{field} must be ")
    assert str(refusal.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ACCEPTED.items() for value in values])
def test_a_value_at_the_edge_is_accepted(field: str, value: object) -> None:
    SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_every_field_is_covered_above() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert names == REFUSED.keys() == ACCEPTED.keys()


@pytest.mark.parametrize(("field", "value", "allowed"), SAID)
def test_a_refusal_says_what_is_allowed_and_why_nothing_else(field: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert f"{field} must be {allowed}" in str(refusal.value)


@pytest.mark.parametrize(("field", "value", "kept"), KEPT)
def test_a_value_is_kept_in_its_one_form(field: str, value: object, kept: object) -> None:
    stored = getattr(SamplingParams(**{field: value}), field)  # type: ignore[arg-type]
    assert (stored, type(stored)) == (kept, type(kept))


def test_the_defaults_are_those_people_know() -> None:
    params = SamplingParams()
    known = {
        "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 1.0,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "max_tokens": 16, "min_tokens": 0, "logprobs": None,
        "prompt_logprobs": None, "include_stop_str_in_output": False, "ignore_eos": False, "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True, "output_kind": RequestOutputKind.CUMULATIVE, "logit_bias": None,
        "allowed_token_ids": None, "stream_interval": None,
    }  # fmt: skip
    assert {name: getattr(params, name) for name in known} == known


@pytest.mark.parametrize(
    ("name", "branches"), [("n", {"n": 2}), ("n", {"n": 2, "best_of": 2}), ("best_of", {"best_of": 2})]
)
def test_a_greedy_request_has_one_answer(name: str, branches: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} must be 1 when the temperature is 0, .* got 2"):
        SamplingParams(**branches, temperature=0)  # type: ignore[arg-type]
    assert SamplingParams(n=1, best_of=1, temperature=0).num_branches == 1


def test_of_best_of_answers_at_most_all_are_kept() -> None:
    with pytest.raises(InvalidRequestError, match="best_of must be None, or an integer from n = 3 to 16384, got 2"):
        SamplingParams(n=3, best_of=2)
    assert SamplingParams(n=3).num_branches == 3
    assert SamplingParams(n=3, best_of=5).num_branches == 5


@pytest.mark.parametrize("temperature", [0, 1, 0.7])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_a_beam_search_has_any_temperature_and_as_many_answers_as_beams(
    temperature: float, early_stopping: bool | Literal["never"]
) -> None:
    params = SamplingParams(
        n=2, best_of=4, use_beam_search=True, temperature=temperature, length_penalty=-1, early_stopping=early_stopping
    )
    assert (params.num_branches, params.length_penalty) == (4, -1.0)
    assert params.clone() == params


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(("name", "value", "off"), [("top_p", 0.9, "1.0"), ("top_k", 5, "0"), ("min_p", 0.1, "0.0")])
def test_a_beam_search_draws_nothing_and_says_so(name: str, value: float, off: str, temperature: float) -> None:
    message = f"{name} must be {off} with use_beam_search, which draws nothing, got {value}"
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(n=2, use_beam_search=True, temperature=temperature, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 16.1, -17, "1", True, None])
def test_a_length_penalty_leaves_an_order(value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"length_penalty must be a number in \[-16, 16\], got"):
        SamplingParams(n=2, use_beam_search=True, length_penalty=value)  # type: ignore[arg-type]


def test_fields_that_are_not_served_do_not_crowd_the_representation() -> None:
    assert "guided_decoding" not in repr(SamplingParams())
    assert "top_p=0.5" in repr(SamplingParams(top_p=0.5))


def test_a_refusal_is_a_value_error_and_ours() -> None:
    with pytest.raises(ValueError, match="top_p"):
        SamplingParams(top_p=0.0)
    assert issubclass(InvalidRequestError, FastpagedError)


@given(temperature=st.floats(0.0, 9.9e-6), top_p=st.floats(0.1, 1.0), top_k=st.integers(-1, 99), min_p=st.floats(0, 1))
def test_a_tiny_temperature_is_greedy_and_resets_the_filters(
    temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    assert params.greedy
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


@given(temperature=st.floats(1e-5, 0.01, exclude_max=True))
def test_a_small_temperature_is_raised_with_a_warning(temperature: float) -> None:
    with pytest.warns(UserWarning, match="temperature .* is raised to 0.01"):
        params = SamplingParams(temperature=temperature, top_k=3)
    assert (params.temperature, params.top_k, params.greedy) == (0.01, 3, False)


@given(temperature=st.floats(0.01, 2.0), top_k=st.integers(1, 1000))
def test_an_ordinary_temperature_is_kept_without_a_word(temperature: float, top_k: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        params = SamplingParams(temperature=temperature, top_k=top_k)
    assert (params.temperature, params.top_k) == (temperature, top_k)


def test_minus_one_means_off_or_drawn() -> None:
    params = SamplingParams(top_k=-1, seed=-1)
    assert (params.top_k, params.seed) == (0, None)


def test_logprobs_true_is_one() -> None:
    assert SamplingParams(logprobs=True).logprobs == 1


def test_numpy_numbers_become_python_ones() -> None:
    numpy = pytest.importorskip("numpy")
    params = SamplingParams(temperature=numpy.float32(0.5), top_k=numpy.int64(7), seed=numpy.uint64(2**63))
    assert (type(params.temperature), type(params.top_k), type(params.seed)) == (float, int, int)
    assert params == SamplingParams(temperature=0.5, top_k=7, seed=2**63)


def test_params_cannot_be_changed_behind_the_door() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_p = 0.0  # type: ignore[misc]


def test_an_unknown_parameter_is_an_error_not_silence() -> None:
    with pytest.raises(TypeError, match="colour"):
        SamplingParams(colour=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stop", ["a", ""], "stop[1] must be a non-empty string, got ''"),
        ("stop", ["a", 7], "stop[1] must be a non-empty string, got 7"),
        ("bad_words", ["a", ""], "bad_words[1] must be a non-empty string, got ''"),
        ("bad_words", ["a" * 257], "bad_words[0] must be at most 256 characters long, got 'aaa"),
        ("bad_words", ["a"] * 1025, "bad_words must be None, or a list of at most 1024 non-empty strings, got '1025"),
        ("stop_token_ids", [1, -1], "stop_token_ids[1] must be a token id, got -1"),
        ("stop_token_ids", [True], "stop_token_ids[0] must be a token id, got True"),
        ("stop_token_ids", [2**31], "stop_token_ids[0] must be a token id, got 2147483648"),
        ("allowed_token_ids", [1, 2.0], "allowed_token_ids[1] must be a token id, got 2.0"),
        ("logit_bias", {"5": 1.0}, "a key of logit_bias must be a token id, got '5'"),
        ("logit_bias", {-1: 1.0}, "a key of logit_bias must be a token id, got -1"),
        ("logit_bias", {5: "1"}, "logit_bias[5] must be a number, got '1'"),
        ("logit_bias", {5: math.nan}, "logit_bias[5] must be a number, got nan"),
    ],
)
def test_an_item_of_a_list_is_refused_by_its_place(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert str(refusal.value).startswith(message)


def test_stop_strings_need_text_to_be_found_in() -> None:
    with pytest.raises(InvalidRequestError, match="stop must be None when detokenize is False, got 'end'"):
        SamplingParams(stop="end", detokenize=False)
    SamplingParams(stop=[], detokenize=False)


@given(max_tokens=st.one_of(st.none(), st.integers(1, 2**31 - 1)), min_tokens=st.integers(0, 2**31 - 1))
def test_min_tokens_is_at_most_max_tokens(max_tokens: int | None, min_tokens: int) -> None:
    if max_tokens is None or min_tokens <= max_tokens:
        assert SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens).min_tokens == min_tokens
    else:
        with pytest.raises(InvalidRequestError, match=f"min_tokens must be .* max_tokens = {max_tokens}, got"):
            SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)


def test_lists_become_tuples_and_one_stop_string_a_list_of_one() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[5, 3, 5], bad_words=["a"], allowed_token_ids=[9, 1, 9])
    assert (params.stop, params.stop_token_ids) == (("end",), (5, 3))
    assert (params.bad_words, params.allowed_token_ids) == (("a",), (9, 1))
    nothing = SamplingParams()
    assert (nothing.stop, nothing.stop_token_ids, nothing.bad_words) == ((), (), ())
    assert (nothing.allowed_token_ids, nothing.logit_bias) == (None, None)


@given(bias=st.floats(allow_nan=False))
def test_a_bias_is_cut_to_a_hundred_either_way(bias: float) -> None:
    assert SamplingParams(logit_bias={7: bias}).logit_bias == {7: max(-100.0, min(100.0, bias))}


def test_params_share_nothing_with_what_they_were_given_nor_with_their_clone() -> None:
    bias, words = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, bad_words=words, stop=["x"], seed=3, temperature=0.5)
    clone = params.clone()
    assert clone == params
    assert hash(clone) == hash(params)
    bias[1] = 5.0
    words.append("b")
    assert params.logit_bias == {1: 2.0}
    assert params.bad_words == ("a",)
    assert clone.logit_bias is not params.logit_bias


def test_from_optional_takes_none_for_what_was_not_given() -> None:
    names = [field.name for field in dataclasses.fields(SamplingParams) if field.name != "max_tokens"]
    assert SamplingParams.from_optional(**dict.fromkeys(names)) == SamplingParams()
    assert SamplingParams.from_optional(max_tokens=None, top_p=0.5) == SamplingParams(max_tokens=None, top_p=0.5)
    assert SamplingParams.from_optional(logit_bias={"5": 1, 6: 2}).logit_bias == {5: 1.0, 6: 2.0}


@pytest.mark.parametrize("key", ["x", "-1", "", "5.0", "99999999999"])
def test_from_optional_refuses_a_bias_for_what_is_no_token_id(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="a key of logit_bias must be a token id"):
        SamplingParams.from_optional(logit_bias={key: 1.0})


def test_from_optional_does_not_swallow_an_unknown_parameter() -> None:
    with pytest.raises(TypeError, match="colour"):
        SamplingParams.from_optional(colour=None)


@pytest.mark.parametrize(
    "field",
    [
        "temperature", "top_p", "min_p", "top_k", "max_tokens", "min_tokens", "seed", "logprobs", "presence_penalty",
        "frequency_penalty", "repetition_penalty",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["large", "negative", "unwritable"])
def test_an_integer_beyond_any_float_is_refused_like_any_other_number(field: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must be .*got a huge integer"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_stop_strings_are_so_many_and_so_long_and_no_more() -> None:
    assert SamplingParams(stop=["x" * 4096] * 256).stop == ("x" * 4096,) * 256
    with pytest.raises(InvalidRequestError, match=r"stop must be at most 256 of them, got '257 strings'"):
        SamplingParams(stop=["x"] * 257)
    with pytest.raises(InvalidRequestError, match=r"stop\[1\] must be at most 4096 characters long, got 'one of 4097'"):
        SamplingParams(stop=["x", "y" * 4097])
