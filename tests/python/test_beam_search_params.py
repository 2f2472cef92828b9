"""BeamSearchParams: the same rules as those of SamplingParams, under the names that beams have."""

from __future__ import annotations

import dataclasses
import re

import pytest

from fastpaged.beam_search_params import BeamSearchParams
from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import RequestOutputKind, SamplingParams


def test_the_defaults_are_those_people_know() -> None:
    params = BeamSearchParams(4, 32)
    known = {
        "beam_width": 4, "max_tokens": 32, "ignore_eos": False, "temperature": 0.0, "length_penalty": 1.0,
        "early_stopping": False, "include_stop_str_in_output": False, "structured_outputs": None,
        "skip_special_tokens": True, "allowed_token_ids": None,
    }  # fmt: skip
    assert {name: getattr(params, name) for name in known} == known


def test_it_is_a_request_for_all_its_beams_at_the_end() -> None:
    given = {
        "max_tokens": None, "ignore_eos": True, "temperature": 0.5, "length_penalty": 0.6, "early_stopping": "never",
        "include_stop_str_in_output": True, "skip_special_tokens": False, "allowed_token_ids": (1, 2), "stop": ("a",),
        "stop_token_ids": (3,), "bad_words": ("b",), "min_tokens": 2, "logprobs": 1, "logit_bias": {1: 2.0},
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.5,
    }  # fmt: skip
    params = BeamSearchParams(beam_width=3, **given)  # type: ignore[arg-type]
    expected = SamplingParams(n=3, use_beam_search=True, output_kind=RequestOutputKind.FINAL_ONLY, **given)  # type: ignore[arg-type]
    assert params.sampling_params() == expected
    named = {field.name for field in dataclasses.fields(BeamSearchParams)}
    assert named == given.keys() | {"beam_width", "structured_outputs", "detokenize"}, "each was given above"


def test_values_are_kept_in_their_one_form_and_cannot_be_changed() -> None:
    params = BeamSearchParams(2, 8, stop="a", stop_token_ids=[5, 5], temperature=1, length_penalty=2)
    assert (params.stop, params.stop_token_ids, params.temperature, params.length_penalty) == (("a",), (5,), 1.0, 2.0)
    assert dataclasses.replace(params, beam_width=3).beam_width == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.beam_width = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("beam_width", 0, "beam_width must be an integer from 1 to 16384, got 0"),
        ("beam_width", True, "beam_width must be an integer from 1 to 16384, got True"),
        ("beam_width", 2.0, "beam_width must be an integer from 1 to 16384, got 2.0"),
        ("max_tokens", 0, "max_tokens must be None (the rest of the context), or an integer from 1"),
        ("temperature", -1, "temperature must be a number in [0, 2], got -1"),
        ("length_penalty", float("inf"), "length_penalty must be a number in [-16, 16], got inf"),
        ("early_stopping", "yes", "early_stopping must be True, False or 'never', got 'yes'"),
        ("early_stopping", 1, "early_stopping must be True, False or 'never', got 1"),
        ("structured_outputs", {"json": {}}, "structured_outputs must be None (structured outputs are not there yet)"),
        ("min_tokens", 9, "min_tokens must be an integer from 0 to max_tokens = 8, got 9"),
        ("allowed_token_ids", (), "allowed_token_ids must be None, or a list of at least one token id, got ()"),
    ],
)
def test_a_refusal_names_the_field_the_value_and_what_is_allowed(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match="^" + re.escape(message)):
        BeamSearchParams(**({"beam_width": 2, "max_tokens": 8} | {field: value}))  # type: ignore[arg-type]


def test_a_beam_search_of_one_beam_is_allowed_and_of_no_length_is_not() -> None:
    assert BeamSearchParams(1, None).sampling_params().num_branches == 1
    with pytest.raises(TypeError, match="max_tokens"):
        BeamSearchParams(4)  # type: ignore[call-arg]
