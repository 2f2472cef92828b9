"""Beam search the slow and obvious way: every continuation of every beam, sorted; nothing shared, no blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from engine.plain_answers import first_stop

from fastpaged.sampling_params import SamplingParams

Logprobs = Callable[[list[int], list[int]], npt.NDArray[np.float64]]  # of (prompt, output): [vocab]


@dataclass(frozen=True)
class PlainAnswer:
    """One answer, finished or not."""

    output: tuple[int, ...]
    sum: float
    score: float
    reason: str


def plain_beam_search(
    prompt: Sequence[int], params: SamplingParams, end_tokens: Sequence[int], logprobs: Logprobs
) -> list[PlainAnswer]:
    """The answers, best first. end_tokens: what ends an answer. Text is a character a token."""
    width, longest = params.num_branches, params.max_tokens
    assert longest is not None
    num_candidates = max(2, 1 + len(end_tokens)) * width
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[PlainAnswer] = []
    while live and not _is_over(live[0], finished, params):
        grown = [
            ((*output, token_id), total + float(logprob))
            for output, total in live
            for token_id, logprob in enumerate(logprobs(list(prompt), list(output)))
            if logprob > -np.inf
        ]
        ranked = sorted(grown, key=lambda candidate: -candidate[1])[:num_candidates]  # stable: beams stand in order
        live = []
        for rank, (output, total) in enumerate(ranked):
            if output[-1] not in end_tokens and len(output) < longest:
                live.append((output, total))
            elif rank < width:
                reason = "stop" if output[-1] in end_tokens else "length"
                finished.append(PlainAnswer(output, total, _score(total, len(output), params), reason))
        live = live[:width]
        finished = _best(finished, width)
        for output, total in [beam for beam in live if _has_stopped(beam[0], params)]:
            live.remove((output, total))
            finished = _best(
                [*finished, PlainAnswer(output, total, _score(total, len(output), params), "string")], width
            )
    return finished


def _is_over(best: tuple[tuple[int, ...], float], finished: list[PlainAnswer], params: SamplingParams) -> bool:
    if len(finished) < params.num_branches:
        return False
    if params.early_stopping is True:
        return True
    hopes = params.early_stopping == "never" and params.length_penalty > 0
    length = params.max_tokens if hopes else len(best[0])
    return _score(best[1], length or 0, params) <= finished[-1].score


def _score(total: float, length: int, params: SamplingParams) -> float:
    return float(total / length**params.length_penalty)


def _best(finished: list[PlainAnswer], width: int) -> list[PlainAnswer]:
    return sorted(finished, key=lambda answer: -answer.score)[:width]


def _has_stopped(output: Sequence[int], params: SamplingParams) -> bool:
    assert isinstance(params.stop, tuple)
    return first_stop("".join(map(chr, output)), params.stop, params.min_tokens) is not None
