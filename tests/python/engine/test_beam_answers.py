"""Answers of beam searches, from events: the past of each beam, what stop strings and aborts make of it, the end."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine.fakes import ToyTokenizer
from engine.plain_answers import EagerTokenizer, EndedSequences, cut, events, first_stop, packed_event

from fastpaged.engine.output_processor import OutputProcessor
from fastpaged.outputs import CompletionOutput, RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

ROOT = 70
LETTERS = range(97, 101)
EOS = 3


class Search:
    """A request whose beams the test grows."""

    def __init__(self, params: SamplingParams, tokenizer: ToyTokenizer | None = None) -> None:
        self.scheduler = EndedSequences()
        self.tokenizer = EagerTokenizer() if tokenizer is None else tokenizer
        self.processor = OutputProcessor(self.tokenizer, self.scheduler)  # type: ignore[arg-type]
        request: Any = SimpleNamespace(
            request_id="r", prompt=None, prompt_token_ids=[65], params=params, num_logprobs=params.logprobs,
            num_prompt_logprobs=None,
        )  # fmt: skip
        stream = self.tokenizer.text_stream([65]) if params.detokenize else None
        self.processor.add(7, request, [None], stream)

    def step(self, *happened: bytes, table: Sequence[dict[int, float]] = ()) -> list[RequestOutput]:
        """table: per row, the candidates with their logprobs, best first."""
        return self.processor.process(candidates(table), events(*happened))


def candidates(table: Sequence[dict[int, float]]) -> Any:
    """A SamplerOutput with these candidates."""

    def scores(first_row: int, num_rows: int) -> Any:
        assert num_rows == 1
        row = table[first_row]
        ids, logprobs = np.array(list(row), np.int32), np.array(list(row.values()), np.float32)
        return logprobs[:1], np.ones(1, np.int32), np.array([0, len(ids)], np.int32), ids, logprobs

    return SimpleNamespace(scores=scores)


def grown(sequence_id: int, parent_id: int, token_id: int, score: float = 0.0, row: int = 0) -> bytes:
    return packed_event(
        kind="BEAM", sequence_id=sequence_id, parent_id=parent_id, token_id=token_id, score=score, sample_row=row
    )


def ended(
    sequence_id: int, parent_id: int, token_id: int | None, reason: str = "STOP", score: float = 0.0, row: int = 0
) -> bytes:
    return packed_event(
        kind="HYPOTHESIS", sequence_id=sequence_id, parent_id=parent_id, token_id=token_id, reason=reason, score=score,
        sample_row=row, group_finished=False,
    )  # fmt: skip


def results(*ranked: tuple[int, float]) -> list[bytes]:
    """(sequence id, score), best first."""
    return [
        packed_event(
            kind="RESULT", sequence_id=sequence_id, branch=rank, score=score, group_finished=rank == len(ranked) - 1
        )
        for rank, (sequence_id, score) in enumerate(ranked)
    ]


# ---- against beams that each keep all of their past


@dataclass(frozen=True)
class PlainBeam:
    tokens: tuple[int, ...] = ()
    entries: tuple[tuple[float, int, tuple[int, ...]], ...] = ()  # logprob, rank and alternatives of each
    reason: str = ""

    @property
    def sum(self) -> float:
        return sum(logprob for logprob, _, _ in self.entries)

    def with_token(self, token_id: int, row: dict[int, float], reason: str = "") -> PlainBeam:
        entry = (row[token_id], list(row).index(token_id) + 1, tuple(row)[:2])
        return PlainBeam((*self.tokens, token_id), (*self.entries, entry), reason)


@dataclass
class PlainSearch:
    """Grows beams at random, as a scheduler may: a child in its parent's place, others with new ids."""

    random_: random.Random
    width: int
    live: dict[int, PlainBeam] = field(default_factory=lambda: {ROOT: PlainBeam()})
    finished: dict[int, PlainBeam] = field(default_factory=dict)
    next_id: int = ROOT + 1

    def step(self, *, last: bool) -> tuple[list[bytes], list[dict[int, float]]]:
        parents = list(self.live)
        table = [self._row() for _ in parents]
        children = [(row, token) for row in range(len(parents)) for token in self.random_.sample(list(LETTERS), 2)]
        self.random_.shuffle(children)
        happened: list[bytes] = []
        grown_: dict[int, PlainBeam] = {}
        for row, token in [] if last else children[: self.width]:
            sequence = parents[row] if parents[row] not in grown_ else self._new_id()
            grown_[sequence] = self.live[parents[row]].with_token(token, table[row])
            happened.append(grown(sequence, parents[row], token, grown_[sequence].sum, row))
        for row in range(len(parents)):
            if last or self.random_.random() < 0.3:
                token, reason = (children[0][1], "LENGTH") if last else (EOS, "STOP")
                sequence = self._new_id()
                self.finished[sequence] = self.live[parents[row]].with_token(token, table[row], reason.lower())
                happened.append(ended(sequence, parents[row], token, reason, row=row))
        self.live = grown_
        self.random_.shuffle(happened)
        return happened, table

    def _row(self) -> dict[int, float]:
        ids = [*LETTERS, EOS]
        self.random_.shuffle(ids)
        return {token_id: -place - self.random_.randrange(1, 9) / 16 for place, token_id in enumerate(ids)}

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id


def test_every_answer_has_the_past_of_its_own_beam() -> None:
    random_ = random.Random(1)
    for _ in range(300):
        width = random_.randint(1, 4)
        params = SamplingParams(
            n=random_.randint(1, width), best_of=width, use_beam_search=True, logprobs=random_.choice([None, 2]),
            output_kind=random_.choice(list(RequestOutputKind)),
        )  # fmt: skip
        search, plain = Search(params), PlainSearch(random_, width)
        num_steps = random_.randint(1, 6)
        for position in range(num_steps):
            happened, table = plain.step(last=position == num_steps - 1)
            assert search.step(*happened, table=table) == []
        chosen = random_.sample(list(plain.finished), min(width, len(plain.finished)))
        ranked = [(sequence, -1.0 - rank) for rank, sequence in enumerate(chosen)]
        (output,) = search.step(*results(*ranked))
        assert output.finished
        assert "r" not in search.processor
        assert len(output.outputs) == min(params.n, len(chosen))
        for (sequence, score), answer in zip(ranked, output.outputs, strict=False):
            check_answer(answer, plain.finished[sequence], params)
            assert answer.score == score
    assert not search.scheduler.ended


def check_answer(answer: CompletionOutput, beam: PlainBeam, params: SamplingParams) -> None:
    assert tuple(answer.token_ids) == beam.tokens
    assert answer.text == "".join(map(chr, beam.tokens[:-1] if beam.reason == "stop" else beam.tokens))
    assert answer.finish_reason == beam.reason
    assert answer.cumulative_logprob == pytest.approx(beam.sum)
    assert answer.stop_reason is None
    if params.logprobs is None:
        assert answer.logprobs is None
        return
    assert answer.logprobs is not None
    shown = zip(beam.tokens, beam.entries, answer.logprobs, strict=True)
    for token_id, (logprob, rank, alternatives), entry in shown:
        assert list(entry) == list(dict.fromkeys([token_id, *alternatives]))
        assert (entry[token_id].logprob, entry[token_id].rank) == (logprob, rank)


# ---- stop strings


def test_a_stop_string_finishes_the_live_beam_that_it_stands_in_and_no_other() -> None:
    random_ = random.Random(2)
    num_stopped = 0
    for _ in range(300):
        width = random_.randint(1, 4)
        stop = "".join(chr(random_.choice(LETTERS)) for _ in range(random_.randint(1, 3)))
        params = SamplingParams(
            n=width, use_beam_search=True, stop=stop, include_stop_str_in_output=random_.random() < 0.3,
            min_tokens=random_.choice([0, 2]), length_penalty=random_.choice([0.6, 1.0]),
        )  # fmt: skip
        search, plain = Search(params), PlainSearch(random_, width)
        for position in range(6):
            happened, table = plain.step(last=position == 5)
            search.step(*happened, table=table)
            stopped = [i for i, beam in plain.live.items() if has_stopped(beam.tokens, params)]
            assert sorted(ended_[1] for ended_ in search.scheduler.ended) == sorted(stopped)
            assert search.scheduler.num_answered == position + 1, "all of a step together, and even if there is none"
            search.scheduler.ended.clear()
            for sequence in stopped:
                beam = plain.live.pop(sequence)
                plain.finished[sequence] = PlainBeam(beam.tokens, beam.entries, "string")
            num_stopped += len(stopped)
            if not plain.live:
                break
        chosen = random_.sample(list(plain.finished), min(width, len(plain.finished)))
        (output,) = search.step(*results(*((sequence, -1.0) for sequence in chosen)))
        for sequence, answer in zip(chosen, output.outputs, strict=True):
            check_stop(answer, plain.finished[sequence], params)
    assert num_stopped > 200


def has_stopped(tokens: Sequence[int], params: SamplingParams) -> bool:
    assert isinstance(params.stop, tuple)
    return first_stop("".join(map(chr, tokens)), params.stop, params.min_tokens) is not None


def check_stop(answer: CompletionOutput, beam: PlainBeam, params: SamplingParams) -> None:
    assert isinstance(params.stop, tuple)
    has_end_token = beam.reason == "stop" and not params.include_stop_str_in_output
    text = "".join(map(chr, beam.tokens[:-1] if has_end_token else beam.tokens))
    assert answer.text == cut(text, params.stop, params.include_stop_str_in_output, params.min_tokens)
    found = first_stop(text, params.stop, params.min_tokens)
    assert answer.stop_reason == (None if found is None else params.stop[0])
    assert answer.finish_reason == ("stop" if found is not None else beam.reason)


def test_a_stop_string_that_the_last_token_completes_is_what_ended_the_answer() -> None:
    search = Search(SamplingParams(n=1, use_beam_search=True, stop="bc"), ToyTokenizer())
    table = [{98: -1.0, 99: -2.0}]
    search.step(grown(ROOT, ROOT, 98, -1.0), table=table)
    (output,) = search.step(ended(71, ROOT, 99, "LENGTH", -1.5), *results((71, -1.5)), table=table)
    (answer,) = output.outputs
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", "stop", "bc")
    assert (answer.cumulative_logprob, answer.score) == (-3.0, -1.5)


def test_a_stop_token_is_told_from_end_of_sequence() -> None:
    for params, reason in (
        (SamplingParams(n=1, use_beam_search=True), None),
        (SamplingParams(n=1, use_beam_search=True, ignore_eos=True, stop_token_ids=[EOS]), EOS),
        (SamplingParams(n=1, use_beam_search=True, include_stop_str_in_output=True), None),
    ):
        search = Search(params)
        (output,) = search.step(ended(71, ROOT, EOS), *results((71, -1.0)), table=[{EOS: -1.0}])
        (answer,) = output.outputs
        assert (answer.finish_reason, answer.stop_reason, answer.token_ids) == ("stop", reason, [EOS])
        assert answer.text == (chr(EOS) if params.include_stop_str_in_output else "")


# ---- how it ends


def test_a_beam_at_the_end_of_the_pool_is_finished_as_it_stands_and_the_others_go_on() -> None:
    search = Search(SamplingParams(n=2, use_beam_search=True))
    table = [{97: -1.0, 98: -2.0}] * 2
    search.step(grown(ROOT, ROOT, 97, -1.0), grown(71, ROOT, 98, -2.0), table=table)
    search.step(ended(ROOT, ROOT, None, "LENGTH", -1.0))
    search.step(grown(71, 71, 97, -3.0), table=table)
    happened = [ended(72, 71, 98, "LENGTH", -2.0)]
    (output,) = search.step(*happened, *results((ROOT, -1.0), (72, -2.0)), table=table)
    assert [(answer.text, answer.finish_reason, answer.score) for answer in output.outputs] == [
        ("a", "length", -1.0),
        ("bab", "length", -2.0),
    ]
    assert [answer.cumulative_logprob for answer in output.outputs] == [-1.0, -5.0]


def test_a_beam_that_a_stop_string_ends_while_the_pool_does_is_ended_by_the_stop_string() -> None:
    search = Search(SamplingParams(n=1, use_beam_search=True, stop="b"))
    search.step(grown(ROOT, ROOT, 97, -1.0))
    search.step(grown(ROOT, ROOT, 98, -2.0))
    assert search.scheduler.ended == [(7, ROOT)]
    (output,) = search.step(ended(ROOT, ROOT, None, "LENGTH", -1.0), *results((ROOT, -1.0)))
    (answer,) = output.outputs
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("a", "stop", "b")


def test_an_abort_shows_the_best_of_what_there_is() -> None:
    params = SamplingParams(n=2, best_of=3, use_beam_search=True, length_penalty=1.0)
    search = Search(params)
    nothing = search.processor.abort("r")
    assert nothing is not None
    assert [(answer.text, answer.finish_reason) for answer in nothing.outputs] == [("", "abort")]

    search = Search(params)
    table = [{97: -1.0, 98: -2.0, 99: -3.0, EOS: -4.0}]
    search.step(grown(ROOT, ROOT, 97, -1.0), grown(71, ROOT, 98, -2.0), grown(72, ROOT, 99, -3.0), table=table)
    happened = [grown(ROOT, ROOT, 97, -2.0), grown(71, 71, 97, -5.0), ended(73, 71, EOS, "STOP", -1.5)]
    assert search.step(*happened, table=table * 2) == []
    output = search.processor.abort("r")
    assert output is not None
    assert output.finished
    assert [(answer.index, answer.text, answer.finish_reason, answer.score) for answer in output.outputs] == [
        (0, "aa", "abort", -1.0),
        (1, "b", "stop", -1.5),
    ]
    assert search.scheduler.ended == [(7,)]
    assert search.step(grown(ROOT, ROOT, 97, -2.0), table=table) == [], "what a step in flight still had for it"


def test_logits_without_a_token_fail_the_whole_search(caplog: pytest.LogCaptureFixture) -> None:
    search = Search(SamplingParams(n=2, use_beam_search=True))
    search.step(grown(ROOT, ROOT, 97, -1.0), grown(71, ROOT, 98, -2.0))
    with caplog.at_level(logging.ERROR):
        (output,) = search.step(packed_event(sequence_id=ROOT, reason="ERROR"))
    assert "request 'r' failed: its logits held a NaN" in caplog.text
    assert [(answer.text, answer.finish_reason) for answer in output.outputs] == [("a", "error"), ("b", "error")]
    assert "r" not in search.processor


def test_a_text_that_cannot_be_made_fails_its_own_answer() -> None:
    search = Search(SamplingParams(n=2, use_beam_search=True), failing_on_c())
    table = [{97: -1.0, 98: -2.0, 99: -3.0}]
    search.step(grown(ROOT, ROOT, 98, -1.0), grown(71, ROOT, 99, -2.0), table=table)
    happened = [ended(72, ROOT, 97, "LENGTH"), ended(73, 71, 97, "LENGTH")]
    (output,) = search.step(*happened, *results((73, -1.0), (72, -2.0)), table=table * 2)
    assert [(answer.text, answer.finish_reason) for answer in output.outputs] == [("", "error"), ("ba", "length")]
    assert [answer.token_ids for answer in output.outputs] == [[99, 97], [98, 97]]
    assert not search.scheduler.ended


def test_a_text_that_cannot_be_watched_for_stop_strings_fails_the_search() -> None:
    search = Search(SamplingParams(n=2, use_beam_search=True, stop="never"), failing_on_c())
    table = [{97: -1.0, 98: -2.0, 99: -3.0}]
    search.step(grown(ROOT, ROOT, 97, -1.0), grown(71, ROOT, 98, -2.0), table=table)
    (output,) = search.step(grown(ROOT, ROOT, 99, -4.0), ended(72, 71, 98, "LENGTH", -3.0), table=table * 2)
    assert output.finished
    assert [(answer.text, answer.finish_reason) for answer in output.outputs] == [("a", "error"), ("b", "error")]
    assert "r" not in search.processor
    assert search.scheduler.ended == [(7,)]


def failing_on_c() -> ToyTokenizer:
    tokenizer = ToyTokenizer()
    tokenizer.fails_on = 99
    return tokenizer


def test_a_search_counts_every_token_that_it_chose_and_knows_when_the_first_one_came() -> None:
    search = Search(SamplingParams(n=1, use_beam_search=True))
    search.step(grown(ROOT, ROOT, 97, -1.0))
    happened = [ended(71, ROOT, EOS, "STOP", -1.5)]
    (output,) = search.step(*happened, *results((71, -1.5)), table=[{EOS: -2.0}])
    assert output.metrics.num_generation_tokens == 2
    assert output.metrics.first_token_ts is not None
    assert output.metrics.last_token_ts is not None
    assert output.metrics.first_token_ts <= output.metrics.last_token_ts
