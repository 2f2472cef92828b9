"""What answers must look like: the whole text cut the obvious way, and a request whose tokens the test gives."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine.fakes import ToyTokenizer, toy_engine

from fastpaged import _core
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.output_processor import OutputProcessor
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

_FINISH_REASONS = tuple(_core.FinishReason.__members__)


def first_stop(text: str, stops: Sequence[str], after: int = 0) -> tuple[int, str] | None:
    """Where the first stop string that ends beyond `after` ends, and which it is."""
    for end in range(after + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return end, stop
    return None


def cut(text: str, stops: Sequence[str], included: bool, after: int = 0) -> str:
    found = first_stop(text, stops, after)
    if found is None:
        return text
    end, stop = found
    return text[:end] if included else text[: end - len(stop)]


def possible(text: str, stops: Sequence[str]) -> str:
    """The longest end of `text` that a stop string begins with."""
    ends = (stop[:length] for stop in stops for length in range(len(stop)) if text.endswith(stop[:length]))
    return max(ends, key=len, default="")


class EagerTokenizer(ToyTokenizer):
    """The toy tokenizer with a stream that holds nothing back."""

    def text_stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> Any:
        return EagerStream()


class EagerStream:
    def push(self, token_id: int) -> str:
        return chr(token_id)

    def finish(self) -> str:
        return ""

    def copy(self) -> EagerStream:
        return self


def eager_engine(**engine_args: Any) -> LLMEngine:
    """The toy engine with that tokenizer's text."""
    engine = toy_engine(**engine_args)
    engine.tokenizer.text_stream = EagerTokenizer().text_stream  # type: ignore[method-assign]
    return engine


class EndedSequences:
    """Stands where the scheduler stands."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, ...]] = []
        self.num_answered = 0  # steps of beam searches of which it was told which beams had stopped

    def abort(self, group_id: int) -> bool:
        self.ended.append((group_id,))
        return True

    def finish(self, group_id: int, sequence_id: int) -> bool:
        self.ended.append((group_id, sequence_id))
        return True

    def finish_beams(self, group_id: int, sequence_ids: Sequence[int]) -> bool:
        self.num_answered += 1
        self.ended += [(group_id, sequence_id) for sequence_id in sequence_ids]
        return bool(sequence_ids)

    def request_cost(self, group_id: int) -> _core.RequestCost:
        """Nothing: what a scheduler says that never had the request."""
        never_asked = _core.Scheduler(
            num_blocks=1, block_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=2
        )
        return never_asked.request_cost(group_id)


@dataclass(frozen=True)
class Events:
    """StepEvents, as many as `count` says there are."""

    packed: bytes
    count: int = 1

    def __len__(self) -> int:
        return self.count


def packed_event(
    *,
    token_id: int | None = None,
    reason: str | None = None,
    group_id: int = 7,
    sequence_id: int = 70,
    parent_id: int | None = None,
    kind: str = "SAMPLE",
    branch: int = 0,
    score: float = 0.0,
    sample_row: int = 0,
    group_finished: bool | None = None,
) -> bytes:
    """One event of StepEvents.packed. group_finished: None for whether it has a reason."""
    return struct.pack(
        "=2Q7qQqd", group_id, sequence_id, -1 if token_id is None else token_id, sample_row, 0, 0,
        -1 if reason is None else _FINISH_REASONS.index(reason),
        reason is not None if group_finished is None else group_finished,
        tuple(_core.EventKind.__members__).index(kind), sequence_id if parent_id is None else parent_id, branch, score,
    )  # fmt: skip


def events(*packed: bytes) -> Any:
    return Events(b"".join(packed), len(packed))


def answered(
    tokenizer: Any, prompt: list[int], output: Sequence[int], params: SamplingParams, *, ends: str = "LENGTH"
) -> tuple[list[RequestOutput], EndedSequences]:
    """All outputs of a request that was given the tokens of `output` one by one; it ends with the last of them, or
    is aborted after it."""
    scheduler = EndedSequences()
    processor = OutputProcessor(tokenizer, scheduler)  # type: ignore[arg-type]
    request: Any = SimpleNamespace(
        request_id="r", prompt=None, prompt_token_ids=prompt, params=params, num_logprobs=params.logprobs,
        num_prompt_logprobs=None,
    )  # fmt: skip
    stream = tokenizer.text_stream(prompt) if params.detokenize else None
    processor.add(7, request, [None], stream)
    no_ids, no_logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
    scores = (np.array([-1.5], np.float32), np.array([1], np.int32), np.array([0, 0], np.int32), no_ids, no_logprobs)
    result: Any = SimpleNamespace(scores=lambda first_row, num_rows: scores)
    outputs: list[RequestOutput] = []
    for position, token_id in enumerate(output):
        last = position == len(output) - 1 and ends != "ABORT"
        outputs += processor.process(result, events(packed_event(token_id=token_id, reason=ends if last else None)))
        if "r" not in processor:
            return outputs, scheduler
    aborted = processor.abort("r")
    assert aborted is not None
    return [*outputs, aborted], scheduler


def check_outputs(
    outputs: list[RequestOutput], output_kind: RequestOutputKind, token_ids: Sequence[int], text: str, case: object
) -> None:
    """Whole, growing, or in pieces: always these tokens and this text, and a logprob for each token."""
    answers = [output.outputs[0] for output in outputs]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True], case
    for answer in answers:
        assert [list(entry) for entry in answer.logprobs or []] == [[token_id] for token_id in answer.token_ids], case
    assert outputs[-1].metrics.num_generation_tokens == len(token_ids), case
    assert answers[-1].cumulative_logprob == pytest.approx(-1.5 * len(token_ids)), case
    if output_kind is RequestOutputKind.DELTA:
        assert [token_id for answer in answers for token_id in answer.token_ids] == token_ids, case
        assert "".join(answer.text for answer in answers) == text, case
        assert [len(answer.token_ids) for answer in answers[: len(token_ids)]] == [1] * len(token_ids), case
    else:
        assert (answers[-1].token_ids, answers[-1].text) == (token_ids, text), case
    if output_kind is RequestOutputKind.CUMULATIVE:
        steps = range(1, len(token_ids) + 1)
        assert [answer.token_ids for answer in answers[: len(token_ids)]] == [token_ids[:n] for n in steps], case
        assert all(text.startswith(answer.text) for answer in answers), case
    if output_kind is RequestOutputKind.FINAL_ONLY:
        assert len(answers) == 1, case
