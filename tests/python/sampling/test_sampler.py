from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sampling.sampler_model import Logits, Params, log_softmax, may_sample, num_kept, order_of, uniform

from fastpaged._core import CpuDevice, Sampler, SamplerOutput, SamplingParams, default_isa

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_THREAD = Sampler(CpuDevice(default_isa(), 1))
TWO_THREADS = Sampler(CpuDevice(default_isa(), 2))
LOWEST = float(np.finfo(np.float32).min)
LARGEST = float(np.finfo(np.float32).max)

logit = st.one_of(
    st.floats(-30, 30, width=32),
    st.integers(-3, 3).map(float),  # ties
    st.sampled_from([-math.inf, -0.0, 1e-40, LOWEST, LARGEST, -1e30]),
)
logits_of_any_size = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300])).flatmap(
    lambda size: hnp.arrays(np.float32, size, elements=logit, fill=logit)
)
rows = logits_of_any_size.filter(lambda row: bool(row.max() > -math.inf))
params = st.builds(
    Params,
    temperature=st.one_of(st.sampled_from([0.0, 1.0, 1e-6, 1e6]), st.floats(0.0625, 3, width=32)),
    top_p=st.one_of(st.just(1.0), st.sampled_from([1e-6, 0.5, 0.9]), st.floats(2**-6, 1, width=32)),
    top_k=st.one_of(st.just(0), st.integers(0, 10), st.integers(0, 400)),
    min_p=st.one_of(st.just(0.0), st.sampled_from([1e-6, 1.0]), st.floats(0, 1, width=32)),
    seed=st.integers(0, 2**64 - 1),
    num_logprobs=st.one_of(st.none(), st.integers(0, 20)),
    num_prompt_logprobs=st.one_of(st.none(), st.integers(0, 400)),
)
positions = st.integers(0, 2**40)


def core_params(p: Params) -> SamplingParams:
    return SamplingParams(
        temperature=p.temperature,
        top_p=p.top_p,
        top_k=p.top_k,
        min_p=p.min_p,
        seed=p.seed,
        num_logprobs=p.num_logprobs,
        num_prompt_logprobs=p.num_prompt_logprobs,
    )


def sample(
    logits: Logits,
    wanted: Sequence[Params],
    at: Sequence[int],
    sampler: Sampler = ONE_THREAD,
    given: Sequence[int | None] | None = None,
) -> SamplerOutput:
    return sampler.sample_rows(logits, [core_params(p) for p in wanted], at, None, given)


def row_bits(output: SamplerOutput, row: int) -> tuple[object, ...]:
    top = [(token_id, np.float32(logprob).tobytes()) for token_id, logprob in output.top_logprobs(row)]
    logprob = output.logprobs[row].tobytes()
    return int(output.token_ids[row]), bool(output.ok[row]), logprob, int(output.ranks[row]), top


def close(given_logprob: float, expected: float) -> bool:
    return given_logprob == expected or abs(given_logprob - expected) <= 1e-6 + 2**-23 * abs(expected)


@settings(max_examples=400, deadline=None)
@given(row=rows, p=params, position=positions)
def test_a_token_is_the_draw_of_the_float64_model(row: Logits, p: Params, position: int) -> None:
    output = sample(row[None], [p], [position])
    assert output.ok[0]
    assert may_sample(row, p, position, int(output.token_ids[0]))


@settings(max_examples=300, deadline=None)
@given(row=rows, p=params, position=positions)
@example(np.array([LOWEST, LARGEST], np.float32), Params(temperature=0, num_logprobs=2), 0)
@example(np.array([LOWEST, LOWEST, 0], np.float32), Params(temperature=0, num_logprobs=3), 0)
def test_logprobs_ranks_and_alternatives_are_those_of_the_raw_logits(row: Logits, p: Params, position: int) -> None:
    output = sample(row[None], [p], [position])
    if p.num_logprobs is None:
        assert (output.logprobs[0], output.ranks[0], output.top_logprobs(0)) == (0, 0, [])
        return
    token_id = int(output.token_ids[0])
    order, logprobs = order_of(row), log_softmax(row)
    assert close(float(output.logprobs[0]), logprobs[token_id])
    assert order[output.ranks[0] - 1] == token_id
    top = output.top_logprobs(0)
    assert [i for i, _ in top] == list(order[: p.num_logprobs])
    assert all(close(logprob, logprobs[i]) for i, logprob in top)


@settings(max_examples=300, deadline=None)
@given(row=rows, p=params, position=positions)
def test_a_given_token_is_scored_by_the_raw_logits_whatever_the_sampling(row: Logits, p: Params, position: int) -> None:
    token_id = position % row.size
    output = sample(row[None], [p], [position], given=[token_id])
    order, logprobs = order_of(row), log_softmax(row)
    assert (int(output.token_ids[0]), bool(output.ok[0])) == (token_id, True)
    assert close(float(output.logprobs[0]), logprobs[token_id])
    assert order[output.ranks[0] - 1] == token_id
    top = output.top_logprobs(0)
    assert [i for i, _ in top] == list(order[: p.num_prompt_logprobs or 0])
    assert all(close(logprob, logprobs[i]) for i, logprob in top)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=st.integers(1, 40), count=st.integers(1, 8))
def test_scores_are_the_rows_that_are_asked_for(data: st.DataObject, size: int, count: int) -> None:
    logits = data.draw(hnp.arrays(np.float32, (count, size), elements=st.floats(-9, 9, width=32)))
    wanted = data.draw(st.lists(params, min_size=count, max_size=count))
    tokens = data.draw(st.lists(st.none() | st.integers(0, size - 1), min_size=count, max_size=count))
    output = sample(logits, wanted, range(count), given=tokens)
    first = data.draw(st.integers(0, count))
    num_rows = data.draw(st.integers(0, count - first))
    scores, ranks, offsets, top_ids, top_logprobs = output.scores(first, num_rows)
    assert (scores.tolist(), ranks.tolist()) == (
        output.logprobs[first : first + num_rows].tolist(),
        output.ranks[first : first + num_rows].tolist(),
    )
    assert (offsets[0], offsets[-1], len(offsets)) == (0, len(top_ids), num_rows + 1)
    for i in range(num_rows):
        mine = slice(offsets[i], offsets[i + 1])
        alternatives = list(zip(top_ids[mine].tolist(), top_logprobs[mine].tolist(), strict=True))
        assert alternatives == output.top_logprobs(first + i)
    for bad in ((-1, 1), (0, -1), (first, count - first + 1), (2**62, 2**62)):
        with pytest.raises(ValueError, match="first_row and num_rows must name some of the"):
            output.scores(*bad)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=st.integers(1, 300), count=st.integers(1, 6))
def test_a_row_does_not_notice_its_batch_mates_or_the_threads(data: st.DataObject, size: int, count: int) -> None:
    mates = st.one_of(logit, st.sampled_from([math.nan, math.inf]))
    logits = data.draw(hnp.arrays(np.float32, (count, size), elements=mates, fill=mates))
    wanted = data.draw(st.lists(params, min_size=count, max_size=count))
    at = data.draw(st.lists(positions, min_size=count, max_size=count))
    tokens = data.draw(st.lists(st.none() | st.integers(0, size - 1), min_size=count, max_size=count))
    together = sample(logits, wanted, at, given=tokens)
    threaded = sample(logits, wanted, at, TWO_THREADS, tokens)
    for row in range(count):
        only = slice(row, row + 1)
        alone = row_bits(sample(logits[only], wanted[only], at[only], given=tokens[only]), 0)
        assert row_bits(together, row) == alone
        assert row_bits(threaded, row) == alone


@settings(max_examples=200, deadline=None)
@given(row=rows, p=params, position=positions)
def test_a_row_is_not_ok_exactly_if_it_has_a_nan_or_nothing_to_choose(row: Logits, p: Params, position: int) -> None:
    poisoned = row.copy()
    poisoned[position % row.size] = math.nan
    empty = np.full_like(row, -math.inf)
    output = sample(np.stack([poisoned, row, empty]), [p] * 3, [position] * 3)
    assert output.ok.tolist() == [False, True, False]
    for bad in (0, 2):
        assert row_bits(output, bad) == (0, False, np.float32(0).tobytes(), 0, [])


@settings(max_examples=200, deadline=None)
@given(row=rows, p=params, position=positions)
def test_top_k_1_is_greedy(row: Logits, p: Params, position: int) -> None:
    top_1 = Params(p.temperature, p.top_p, 1, p.min_p, p.seed, 3)
    greedy = Params(temperature=0, num_logprobs=3)
    output = sample(np.stack([row, row]), [top_1, greedy], [position, 0])
    assert row_bits(output, 0) == row_bits(output, 1)


def test_u_walks_through_the_kept_tokens_in_the_order_of_ids() -> None:
    row = np.log(np.array([1, 2, 100, 3, 4], np.float32))
    p = Params(top_k=3, seed=11)
    assert num_kept(row, p, 0.0) == 3
    count = 200
    output = sample(np.tile(row, (count, 1)), [p] * count, range(count))
    shares = np.cumsum([100, 3, 4]) / 107
    expected = [(2, 3, 4)[int(np.searchsorted(shares, uniform(11, i), side="right"))] for i in range(count)]
    assert output.token_ids.tolist() == expected
    assert len(set(expected)) == 3


def test_outputs_are_read_only_copies() -> None:
    logits = np.zeros((2, 3), np.float32)
    output = sample(logits, [Params(temperature=0)] * 2, [0, 0])
    for array in (output.token_ids, output.ok, output.logprobs, output.ranks):
        assert array.shape == (2,)
        assert not array.flags.writeable
    assert output.token_ids.dtype == np.int32
    assert output.ok.dtype == np.bool_


def test_no_rows_give_no_tokens() -> None:
    assert sample(np.zeros((0, 7), np.float32), [], []).token_ids.size == 0


@pytest.mark.parametrize(
    ("logits", "count", "message"),
    [
        (np.zeros((3, 4), np.float32), 2, r"logits must have 2 rows, got 3"),
        (np.zeros((2, 4), np.float64), 2, r"logits must be an array of float32"),
        (np.zeros((2, 0), np.float32), 2, r"logits must have 1\.\."),
        (np.zeros(4, np.float32), 2, r"logits .* rank 2, got rank 1"),
        (np.zeros((4, 2), np.float32).T, 2, r"logits must have contiguous rows"),
    ],
)
def test_wrong_logits_raise_a_value_error_that_names_them(logits: Logits, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(logits, [Params()] * count, [0] * count)


def test_one_position_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match=r"positions must have one entry per params, got 1 for 2"):
        sample(np.zeros((2, 3), np.float32), [Params()] * 2, [0])


def test_a_given_token_beyond_the_vocabulary_and_one_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a given token must be in \[0, 3\), got 3"):
        sample(np.zeros((2, 3), np.float32), [Params()] * 2, [0, 0], given=[None, 3])
    with pytest.raises(ValueError, match=r"given must have one entry per params, got 1 for 2"):
        sample(np.zeros((2, 3), np.float32), [Params()] * 2, [0, 0], given=[None])


@pytest.mark.parametrize("row", [-1, 2])
def test_alternatives_of_a_row_that_is_not_there_are_refused(row: int) -> None:
    output = sample(np.zeros((2, 3), np.float32), [Params()] * 2, [0, 0])
    with pytest.raises(ValueError, match=rf"row must be one of the 2 rows.* got {row}"):
        output.top_logprobs(row)
