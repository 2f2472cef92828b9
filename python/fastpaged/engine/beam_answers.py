"""BeamAnswers: what a beam search has found so far, and in the end its answers.

The past of a beam is a chain of nodes that all beams grown from it share, so that a beam that takes another's place, or
splits, costs a step no more than one that goes straight on. Text is made at the end, of the answers alone, but where
stop strings are looked for: then each live beam has a stream of its own, copied where beams split.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from fastpaged.engine.lazy_logprobs import LazyLogprobs, TokenLogprobs
from fastpaged.outputs import CompletionOutput

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastpaged._core import SamplerOutput
    from fastpaged.engine.admission import EngineRequest
    from fastpaged.engine.lazy_logprobs import TokenText
    from fastpaged.engine.output_processor import StopStrings
    from fastpaged.outputs import FinishReason
    from fastpaged.tokenizer import TextStream

BEAM, HYPOTHESIS, RESULT = 1, 2, 3  # of EventKind


class BeamEvent(NamedTuple):
    """A SequenceEvent of a beam search, see scheduler_output.h. token_id and finish_reason: None if there is none."""

    kind: int
    sequence_id: int
    parent_id: int
    token_id: int | None
    sample_row: int
    score_row: int
    num_scores: int
    finish_reason: FinishReason | None
    group_finished: bool
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class _Node:
    """One token behind those of `parent`. logprobs: None unless they are to be shown."""

    parent: _Node | None
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class _Watch:
    """The text of a live beam, so far as stop strings look at it."""

    stream: TextStream
    stops: StopStrings

    def after(self, token_id: int, *, may_stop: bool) -> _Watch:
        """With one more token. The text before it is not changed: others may go on from there."""
        stream, stops = self.stream.copy(), self.stops.copy()
        stops.push(stream.push(token_id), may_stop)
        return _Watch(stream, stops)


@dataclass(frozen=True, slots=True)
class _Beam:
    """A live beam, or one that is finished, by its last token or else: then with a reason and with a score, which is
    the sum with length_penalty applied."""

    node: _Node | None
    num_tokens: int
    sum: float  # of logprobs
    watch: _Watch | None
    finish_reason: FinishReason | None = None
    score: float = 0.0
    has_end_token: bool = False


class BeamAnswers:
    """One beam search, as its events tell it."""

    def __init__(
        self,
        request: EngineRequest,
        stream: TextStream | None,
        stops: StopStrings | None,
        token_text: TokenText,
        eos_token_ids: Collection[int],
    ) -> None:
        """stream, stops: at the start of an answer; None: no text, nothing to look for."""
        self._request = request
        self._eos_token_ids = () if request.params.ignore_eos else eos_token_ids
        self._stream = stream
        self._stops = stops
        self._token_text = token_text
        watch = None if stream is None or stops is None else _Watch(stream, stops)
        self._root: _Beam | None = _Beam(None, 0, 0.0, watch)  # the prompt, until beams have grown from it
        self._live: dict[int, _Beam] = {}
        self._finished: dict[int, _Beam] = {}
        self._results: dict[int, _Beam] = {}  # by rank, as they become known
        self._abort_reason: str | None = None
        self.is_over = False
        self.completions: list[CompletionOutput] = []  # once it is over

    def advance(self, events: Sequence[BeamEvent], result: SamplerOutput) -> list[int]:
        """What happened in a step, in order. The live beams that a stop string ends now, which the scheduler does not
        know yet."""
        for event in events:
            if event.finish_reason == "error":
                self.end("error")
                return []
        grown: dict[int, _Beam] = {}
        has_grown = False
        for event in events:
            if event.kind == BEAM:
                grown[event.sequence_id] = self._grown(event, result)
            elif event.kind == HYPOTHESIS:
                self._finished[event.sequence_id] = self._ended(event, result)
            has_grown = has_grown or (event.kind in (BEAM, HYPOTHESIS) and event.token_id is not None)
        if has_grown:  # all beams move in one step, or none; but for one that has reached the end of the pool
            self._root, self._live = None, grown
        stopped = self._stop()
        self._note_results(events)
        return stopped

    def end(self, reason: FinishReason, stop_reason: str | None = None) -> None:
        """At once: the best of what there is, whether it has ended or not. Of a text that cannot be made as much as
        there is. stop_reason: of those that had not."""
        self._abort_reason = stop_reason
        running = self._live.values() if self._root is None else [self._root]
        every = [*self._finished.values(), *(self._scored(beam, reason) for beam in running)]
        self._show(sorted(every, key=lambda beam: -beam.score))

    def _scored(self, beam: _Beam, reason: FinishReason) -> _Beam:
        """Finished as it stands."""
        return replace(beam, finish_reason=reason, score=self._score(beam.sum, beam.num_tokens), watch=None)

    def _score(self, sum_: float, num_tokens: int) -> float:
        penalty: float = self._request.params.length_penalty
        return 0.0 if sum_ == 0.0 else sum_ / float(num_tokens) ** penalty

    def _parent(self, sequence_id: int) -> _Beam:
        return self._live[sequence_id] if self._root is None else self._root

    def _grown(self, event: BeamEvent, result: SamplerOutput) -> _Beam:
        parent, token_id = self._parent(event.parent_id), cast("int", event.token_id)
        logprobs = None if self._request.num_logprobs is None else self._logprobs(event, result)
        num_tokens = parent.num_tokens + 1
        watch = parent.watch
        if watch is not None:
            watch = watch.after(token_id, may_stop=num_tokens > self._request.params.min_tokens)
        return _Beam(_Node(parent.node, token_id, logprobs), num_tokens, event.score, watch)

    def _ended(self, event: BeamEvent, result: SamplerOutput) -> _Beam:
        """A beam with the token that ends it, or as it stood at the end of the pool."""
        if event.token_id is None and event.sequence_id in self._finished:
            return self._finished[event.sequence_id]  # a stop string ended it while the scheduler planned
        parent = self._parent(event.parent_id)
        if event.token_id is None:
            self._live.pop(event.parent_id, None)
            return replace(parent, finish_reason=event.finish_reason, score=event.score, watch=None)
        logprobs = self._logprobs(event, result)
        shown = None if self._request.num_logprobs is None else logprobs
        return _Beam(
            node=_Node(parent.node, event.token_id, shown),
            num_tokens=parent.num_tokens + 1,
            sum=parent.sum + logprobs.logprob,
            watch=None,
            finish_reason=event.finish_reason,
            score=event.score,
            has_end_token=event.finish_reason == "stop",
        )

    def _logprobs(self, event: BeamEvent, result: SamplerOutput) -> TokenLogprobs:
        """Of the event's token, which is one of its row's candidates."""
        _, _, _, top_ids, top_logprobs = result.scores(event.sample_row, 1)
        place = int(np.flatnonzero(top_ids == event.token_id)[0])
        count = self._request.num_logprobs or 0
        return TokenLogprobs(
            cast("int", event.token_id), float(top_logprobs[place]), place + 1, top_ids[:count], top_logprobs[:count]
        )

    def _stop(self) -> list[int]:
        """Finishes the live beams whose text has come to hold a stop string."""
        stopped = [
            sequence_id
            for sequence_id, beam in self._live.items()
            if beam.watch is not None and beam.watch.stops.found is not None
        ]
        for sequence_id in stopped:
            self._finished[sequence_id] = self._scored(self._live.pop(sequence_id), "stop")
        return stopped

    def _note_results(self, events: Sequence[BeamEvent]) -> None:
        for event in events:
            if event.kind == RESULT:
                self._results[event.rank] = replace(self._finished[event.sequence_id], score=event.score)
                if event.group_finished:
                    self._show([self._results[rank] for rank in sorted(self._results)])

    def _show(self, best_first: Sequence[_Beam]) -> None:
        shown = best_first[: self._request.params.n]
        self.completions = [self._completion(rank, beam) for rank, beam in enumerate(shown)]
        self.is_over = True
        self._live, self._finished, self._results = {}, {}, {}

    def _completion(self, rank: int, beam: _Beam) -> CompletionOutput:
        """A text that cannot be made fails its own answer."""
        nodes = _path(beam.node)
        token_ids = [node.token_id for node in nodes]
        finish_reason, stop_reason = beam.finish_reason, cast("int | str | None", None)
        text = _Text(self._stream, self._stops, self._request.params.min_tokens)
        try:
            text.add(token_ids, hides_last=beam.has_end_token and not self._request.params.include_stop_str_in_output)
        except Exception:
            name = self._request.request_id
            logging.getLogger(__name__).exception("request %r: the text of an answer failed", name)
            finish_reason = "error"
        shown, found = text.end()
        if finish_reason != "error" and found is not None:
            finish_reason, stop_reason = "stop", found
        elif beam.has_end_token and token_ids[-1] not in self._eos_token_ids:
            stop_reason = token_ids[-1]
        elif finish_reason == "abort":
            stop_reason = self._abort_reason
        logprobs = None
        if self._request.num_logprobs is not None:
            logprobs = LazyLogprobs((node.logprobs for node in nodes), self._token_text)
        return CompletionOutput(
            index=rank,
            text=shown,
            token_ids=token_ids,
            cumulative_logprob=beam.sum,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            seed=self._request.params.seed,
            score=beam.score,
        )


class _Text:
    """The text of an answer, from the start."""

    def __init__(self, stream: TextStream | None, stops: StopStrings | None, min_tokens: int) -> None:
        self._stream = None if stream is None else stream.copy()
        self._stops = None if stops is None else stops.copy()
        self._min_tokens = min_tokens
        self._pieces: list[str] = []

    def add(self, token_ids: Sequence[int], *, hides_last: bool) -> None:
        """All of its tokens. What was added before one of them raises stays."""
        if self._stream is None:
            return
        for count, token_id in enumerate(token_ids[:-1] if hides_last else token_ids, 1):
            self._add_piece(self._stream.push(token_id), count)
        self._add_piece(self._stream.finish(), len(token_ids))

    def end(self) -> tuple[str, str | None]:
        """With what is held back, and the stop string that was found."""
        held, found = ("", None) if self._stops is None else (self._stops.finish(), self._stops.found)
        return "".join(self._pieces) + held, found

    def _add_piece(self, piece: str, num_tokens: int) -> None:
        self._pieces.append(piece if self._stops is None else self._stops.push(piece, num_tokens > self._min_tokens))


def _path(node: _Node | None) -> list[_Node]:
    """From the first token on."""
    nodes: list[_Node] = []
    while node is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]
