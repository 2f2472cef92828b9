"""Logprobs that look like a list of dicts and are arrays until they are read."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from engine.fakes import VOCAB_SIZE, toy_engine
from hypothesis import given
from hypothesis import strategies as st

from fastpaged.engine import lazy_logprobs
from fastpaged.engine.lazy_logprobs import LazyLogprobs, token_logprobs
from fastpaged.outputs import Logprob
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
Plain = list[dict[int, Logprob] | None]


def made(given_rows: list[tuple[int, list[int]] | None]) -> tuple[LazyLogprobs, Plain]:
    """From (token id, ids of its alternatives), in one array as a step gives them; and the list it must look like."""
    rows = [row for row in given_rows if row is not None]
    top_ids = [other for _, others in rows for other in others]
    scores = (
        np.array([-(token_id + 1) / 8 for token_id, _ in rows], np.float32),
        np.array([others.index(token) + 1 if token in others else 99 for token, others in rows], np.int32),
        np.cumsum([0, *(len(others) for _, others in rows)]).astype(np.int32),
        np.array(top_ids, np.int32),
        np.array([-(other + 1) / 8 for other in top_ids], np.float32),
    )
    made_rows = iter(token_logprobs([token_id for token_id, _ in rows], scores))
    plain: Plain = []
    for row in given_rows:
        if row is None:
            plain.append(None)
            continue
        token_id, others = row
        rank = others.index(token_id) + 1 if token_id in others else 99
        entry = {token_id: Logprob(-(token_id + 1) / 8, rank, chr(token_id))}
        entry |= {o: Logprob(-(o + 1) / 8, i, chr(o)) for i, o in enumerate(others, 1) if o != token_id}
        plain.append(entry)
    return LazyLogprobs([None if row is None else next(made_rows) for row in given_rows], chr), plain


ROWS = st.lists(
    st.none() | st.tuples(st.integers(0, 20), st.lists(st.integers(0, 20), unique=True, max_size=6)), max_size=8
)


@given(ROWS, ROWS, st.slices(8))
def test_it_is_the_list_that_it_looks_like(rows: Any, others: Any, part: slice) -> None:
    lazy, plain = made(rows)
    assert len(lazy) == len(plain)
    assert lazy == plain
    assert plain == lazy
    assert list(lazy) == plain
    assert [[*entry] for entry in lazy if entry] == [[*entry] for entry in plain if entry], "in this order"
    assert lazy[part] == plain[part]
    assert isinstance(lazy[part], LazyLogprobs)
    assert list(reversed(lazy)) == plain[::-1]
    assert repr(lazy) == repr(plain)
    assert [lazy[-1 - i] for i in range(len(plain))] == plain[::-1]
    for index in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            lazy[index]
    other_lazy, other_plain = made(others)
    assert (lazy == other_lazy) == (lazy == other_plain) == (plain == other_plain)
    assert LazyLogprobs.joined([lazy, other_lazy]) == plain + other_plain


@given(ROWS)
def test_a_copy_is_itself_and_a_pickle_has_its_texts_and_no_tokenizer(rows: Any) -> None:
    lazy, plain = made(rows)
    assert copy.copy(lazy) is lazy
    assert copy.deepcopy(lazy) is lazy
    assert pickle.loads(pickle.dumps(lazy)) == plain
    no_pickle = LazyLogprobs(lazy._rows, lambda token_id: chr(token_id))
    assert pickle.loads(pickle.dumps(no_pickle)) == plain


def test_it_is_no_tuple_and_cannot_be_changed_or_hashed() -> None:
    lazy, plain = made([None, (3, [1, 3])])
    assert lazy != tuple(plain)
    assert lazy != plain[:1]
    with pytest.raises(TypeError):
        lazy[0] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        hash(lazy)
    entry = lazy[1]
    assert entry is not None
    entry.clear()
    assert lazy == plain, "what was read is the reader's own"


@pytest.fixture
def num_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[how many Logprobs were made, how many texts]"""
    counts = [0, 0]

    def counted(*values: Any) -> Logprob:
        counts[0] += 1
        return Logprob(*values)

    monkeypatch.setattr(lazy_logprobs, "Logprob", counted)
    return counts


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_step_makes_no_entry_and_no_text_however_many_are_asked_for(
    kind: RequestOutputKind, num_made: list[int]
) -> None:
    engine = toy_engine(max_logprobs=-1)
    text_of = engine.tokenizer.token_text

    def token_text(token_id: int) -> str:
        num_made[1] += 1
        return str(text_of(token_id))

    engine.tokenizer.token_text = token_text  # type: ignore[method-assign]
    params = replace(GREEDY, output_kind=kind, logprobs=-1, prompt_logprobs=-1)
    engine.add_request("all", list(range(65, 95)), params)
    engine.add_request("neighbour", [65], GREEDY)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += [output for output in engine.step() if output.request_id == "all"]
    assert num_made == [0, 0]
    prompt_logprobs, logprobs = outputs[0].prompt_logprobs, outputs[-1].outputs[0].logprobs
    assert prompt_logprobs is not None
    assert logprobs is not None
    assert len(prompt_logprobs[7] or ()) == len(logprobs[-1]) == VOCAB_SIZE
    assert num_made == [2 * VOCAB_SIZE, 2 * VOCAB_SIZE], "what was read, and nothing else"


def test_outputs_go_through_asdict_copies_and_pickles() -> None:
    engine = toy_engine()
    engine.add_request("r", [65, 66], replace(GREEDY, logprobs=2, prompt_logprobs=1))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    for output in outputs:
        assert output.prompt_logprobs is outputs[0].prompt_logprobs, "one for all"
        assert pickle.loads(pickle.dumps(output)) == copy.deepcopy(output) == output
        as_dict = asdict(output)
        assert as_dict["prompt_logprobs"] == output.prompt_logprobs
        assert as_dict["outputs"][0]["logprobs"] == output.outputs[0].logprobs
