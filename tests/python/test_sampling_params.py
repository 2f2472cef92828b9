"""SamplingParams: the rules of each field, at its edges."""

from __future__ import annotations

import dataclasses
import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpaged.errors import FastpagedError, InvalidRequestError
from fastpaged.sampling_params import SamplingParams

# field -> values just outside, and of the wrong kind
REFUSED: dict[str, list[object]] = {
    "temperature": [-0.001, 2.001, math.nan, math.inf, "hot", None, True],
    "top_p": [0.0, -0.1, 1.001, math.nan, "1", None],
    "top_k": [-2, 1.5, "3", None, 2**31, True],
    "min_p": [-0.001, 1.001, math.nan, None],
    "seed": [-2, 2**64, 1.0, "7", True],
    "max_tokens": [0, -1, 2.0, "9", 2**31],
    "logprobs": [-2, 1.0, "all", False],
    "ignore_eos": [1, None, "yes"],
    "skip_special_tokens": [0, None],
}
ACCEPTED: dict[str, list[object]] = {
    "temperature": [0, 0.0, 0.01, 1, 2, 2.0],
    "top_p": [1e-6, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 0.0, 1.0],
    "seed": [None, -1, 0, 2**64 - 1],
    "max_tokens": [None, 1, 2**31 - 1],
    "logprobs": [None, -1, 0, True, 5],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
}


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
    with pytest.raises(TypeError, match="use_beam_search"):
        SamplingParams(use_beam_search=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "top_k", "max_tokens", "seed", "logprobs"])
@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["large", "negative", "unwritable"])
def test_an_integer_beyond_any_float_is_refused_like_any_other_number(field: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must be .*got a huge integer"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
