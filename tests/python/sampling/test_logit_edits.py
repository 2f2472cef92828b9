"""Masks, biases and penalties, against numpy: the sampler with them is the sampler without them on edited logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sampling.edits_model import PLAIN, Edits
from sampling.sampler_model import Logits, log_softmax, order_of

from fastpaged._core import CpuDevice, Sampler, SamplerOutput, SamplingParams, default_isa

SAMPLER = Sampler(CpuDevice(default_isa(), 1))


@dataclass(frozen=True)
class Case:
    logits: Logits
    edits: Edits
    prompt: list[int]
    output: list[int]

    def sample(self, **changes: Any) -> SamplerOutput:
        history = (self.prompt, self.output)
        return SAMPLER.sample_rows(self.logits[None], [self.edits.params(**changes)], [self.position], [history])

    def edited(self) -> Logits:
        return self.edits.applied_to(self.logits, self.prompt, self.output)

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.one_of(st.integers(2, 12), st.sampled_from([128, 129])))
    logit = st.one_of(st.floats(-30, 30, width=32), st.integers(-3, 3).map(float), st.just(-math.inf))
    token = st.integers(0, size - 1)
    output = draw(st.lists(token, max_size=12))
    tails = st.builds(
        lambda length, last: (*output[len(output) - min(length, len(output)) :], last), st.integers(0, 4), token
    )
    edits = Edits(
        presence_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2, width=32))),
        frequency_penalty=draw(st.one_of(st.just(0.0), st.floats(-2, 2, width=32))),
        repetition_penalty=draw(st.one_of(st.just(1.0), st.floats(0.125, 8, width=32))),
        min_tokens=draw(st.integers(0, 12)),
        logit_bias=tuple(draw(st.dictionaries(token, st.floats(-100, 100, width=32), max_size=5)).items()),
        allowed_token_ids=draw(st.one_of(st.none(), st.lists(token, min_size=1, max_size=6).map(tuple))),
        end_token_ids=tuple(draw(st.lists(token, max_size=2))),
        bad_words=tuple(
            draw(st.lists(st.one_of(tails, st.lists(token, min_size=1, max_size=3).map(tuple)), max_size=3))
        ),
    )
    prompt = draw(st.lists(token, max_size=12))
    return Case(draw(hnp.arrays(np.float32, size, elements=logit, fill=logit)), edits, prompt, output)


@settings(max_examples=500, deadline=None)
@given(case=cases(), temperature=st.sampled_from([0.0, 0.7, 1.0]), top_k=st.sampled_from([0, 2]))
def test_a_token_is_the_one_that_plain_params_choose_from_the_edited_logits(
    case: Case, temperature: float, top_k: int
) -> None:
    assume(case.logits.max() > -math.inf)
    output = case.sample(temperature=temperature, top_k=top_k)
    plain = SamplingParams(**{**PLAIN, "temperature": temperature, "top_k": top_k})
    expected = SAMPLER.sample_rows(case.edited()[None], [plain], [case.position])
    assert output.ok[0] == expected.ok[0] == (case.edited().max() > -math.inf)
    assert output.token_ids[0] == expected.token_ids[0]


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_logprobs_and_ranks_stay_those_of_the_raw_logits(case: Case) -> None:
    assume(case.edited().max() > -math.inf)
    output = case.sample()
    token_id = int(output.token_ids[0])
    logprobs, order = log_softmax(case.logits), order_of(case.logits)
    assert output.logprobs[0] == pytest.approx(logprobs[token_id], rel=2**-22, abs=1e-6)
    assert order[output.ranks[0] - 1] == token_id
    assert [i for i, _ in output.top_logprobs(0)] == list(order[:3])


@settings(max_examples=100, deadline=None)
@given(drawn=st.lists(cases(), min_size=2, max_size=5))
def test_a_row_with_edits_does_not_notice_the_rows_beside_it(drawn: list[Case]) -> None:
    size = max(case.logits.size for case in drawn)
    rows = [np.pad(case.logits, (0, size - case.logits.size), constant_values=0.5) for case in drawn]
    params = [case.edits.params() for case in drawn]
    histories = [(case.prompt, case.output) for case in drawn]
    at = [case.position for case in drawn]
    together = SAMPLER.sample_rows(np.stack(rows), params, at, histories)
    for i in range(len(drawn)):
        alone = SAMPLER.sample_rows(rows[i][None], params[i : i + 1], at[i : i + 1], histories[i : i + 1])
        assert (together.token_ids[i], together.ok[i]) == (alone.token_ids[0], alone.ok[0])
        assert together.logprobs[i].tobytes() == alone.logprobs[0].tobytes()
        assert together.top_logprobs(i) == alone.top_logprobs(0)


def test_ids_beyond_the_vocabulary_change_nothing() -> None:
    far = Edits(2.0, 2.0, 2.0, 9, ((99, 5.0),), (0, 1, 2, 99), (99,), ((99,),))
    case = Case(np.array([1, 3, 2], np.float32), far, [99], [99, 99])
    assert case.sample(temperature=0.0).token_ids[0] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"presence_penalty": 2.5}, r"presence_penalty must be in \[-2, 2\], got 2.5"),
        ({"frequency_penalty": math.nan}, r"frequency_penalty must be in \[-2, 2\], got nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be finite and > 0"),
        ({"min_tokens": -1}, "min_tokens must be in"),
        ({"logit_bias": {1: 101.0}}, r"logit_bias must be in \[-100, 100\]"),
        ({"logit_bias": {-1: 1.0}}, "a key of logit_bias must be in"),
        ({"allowed_token_ids": []}, "allowed_token_ids must be None or hold an id, got none"),
        ({"allowed_token_ids": [-1]}, r"allowed_token_ids\[0\] must be in"),
        ({"end_token_ids": [1, -1]}, r"end_token_ids\[1\] must be in"),
        ({"bad_words": [[1], []]}, "bad_words must be words of at least one token"),
        ({"bad_words": [[1], [2, -1]]}, r"bad_words\[1\]\[1\] must be in"),
    ],
)
def test_what_the_core_cannot_use_raises_a_value_error_that_names_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Edits().params(**changes)


def test_one_history_too_few_is_refused() -> None:
    params = [Edits().params()] * 2
    with pytest.raises(ValueError, match="histories must have one entry per params, got 1 for 2"):
        SAMPLER.sample_rows(np.zeros((2, 3), np.float32), params, [0, 0], [([], [])])
