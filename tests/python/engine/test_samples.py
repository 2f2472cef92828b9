"""Several answers to one request, from events: each is what it would be alone, and one output a step shows them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine.fakes import ToyTokenizer
from engine.plain_answers import EndedSequences, answered, events, packed_event
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.engine.output_processor import OutputProcessor
from fastpaged.outputs import CompletionOutput, RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
PROMPT = [65]
FIRST_SEQUENCE = 70
LOGPROB = -1.5


class Request:
    """A request with several samples, whose events the test gives."""

    def __init__(
        self, params: SamplingParams, tokenizer: ToyTokenizer | None = None, *, num_prompt_logprobs: int | None = None
    ) -> None:
        self.scheduler = EndedSequences()
        tokenizer = ToyTokenizer() if tokenizer is None else tokenizer
        self.processor = OutputProcessor(tokenizer, self.scheduler)  # type: ignore[arg-type]
        request: Any = SimpleNamespace(
            request_id="r", prompt=None, prompt_token_ids=PROMPT, params=params, num_logprobs=params.logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
        )  # fmt: skip
        stream = tokenizer.text_stream(PROMPT) if params.detokenize else None
        seeds = [1000 + branch for branch in range(params.num_branches)]
        self.processor.add(7, request, seeds, stream)  # type: ignore[arg-type]

    def step(
        self, tokens: dict[int, int | None], reasons: dict[int, str] | None = None, logprobs: Sequence[float] = ()
    ) -> list[RequestOutput]:
        """tokens: branch -> the token that it goes on by; None: it ends without one."""
        reasons = reasons or {}
        happened = [
            packed_event(
                token_id=token_id, reason=reasons.get(branch), sequence_id=FIRST_SEQUENCE + branch,
                parent_id=FIRST_SEQUENCE, branch=branch, sample_row=branch, group_finished=False,
            )
            for branch, token_id in tokens.items()
        ]  # fmt: skip
        return self.processor.process(sampled(logprobs), events(*happened))


def sampled(logprobs: Sequence[float]) -> Any:
    """A SamplerOutput without alternatives; LOGPROB where none is given."""

    def scores(first_row: int, num_rows: int) -> Any:
        chosen = [logprobs[row] if row < len(logprobs) else LOGPROB for row in range(first_row, first_row + num_rows)]
        nothing = np.empty(0, np.int32), np.empty(0, np.float32)
        return np.array(chosen, np.float32), np.ones(num_rows, np.int32), np.zeros(num_rows + 1, np.int32), *nothing

    return SimpleNamespace(scores=scores)


def alone(params: SamplingParams, output: Sequence[int], reason: str, branch: int) -> list[list[CompletionOutput]]:
    """Per token, what one sample's request shows with it, as this branch."""
    shown: list[list[CompletionOutput]] = []
    outputs, _ = answered(ToyTokenizer(), PROMPT, output, replace(params, n=1), ends=reason.upper())
    num_tokens = 0
    for request_output in outputs:
        answer = request_output.outputs[0]
        num_tokens = len(answer.token_ids) + (num_tokens if params.output_kind is DELTA else 0)
        shown += [[] for _ in range(num_tokens - len(shown))]
        shown[num_tokens - 1].append(replace(answer, index=branch, seed=1000 + branch))
    return shown


def run(params: SamplingParams, answers: Sequence[tuple[list[int], str]]) -> tuple[list[list[RequestOutput]], Request]:
    """Per step, the outputs of a request whose branches are given these tokens and ends."""
    request = Request(params)
    steps = []
    running = set(range(len(answers)))
    for step in range(max(len(tokens) for tokens, _ in answers)):
        tokens: dict[int, int | None] = {i: answers[i][0][step] for i in sorted(running)}
        reasons = {i: answers[i][1].upper() for i in running if step == len(answers[i][0]) - 1}
        steps.append(request.step(tokens, reasons))
        stopped = {sequence - FIRST_SEQUENCE for _, sequence in request.scheduler.ended}  # type: ignore[misc]
        running -= reasons.keys() | stopped
        if not running:
            break
    return steps, request


letters = st.integers(97, 99)  # a to c
answer_lists = st.lists(
    st.tuples(st.lists(letters, min_size=1, max_size=9), st.sampled_from(["length", "error"])), min_size=2, max_size=5
)
some_params = st.builds(
    SamplingParams,
    stop=st.lists(st.text("abc", min_size=1, max_size=3), max_size=2),
    include_stop_str_in_output=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 2]),
    logprobs=st.sampled_from([None, 0]),
    stream_interval=st.integers(1, 4),
)


@given(some_params, answer_lists)
@settings(max_examples=200, deadline=None)
def test_deltas_are_those_that_each_branch_would_give_alone(
    params: SamplingParams, answers: list[tuple[list[int], str]]
) -> None:
    params = replace(params, n=len(answers), output_kind=DELTA)
    steps, request = run(params, answers)
    expected = [alone(params, *answer, branch) for branch, answer in enumerate(answers)]
    for step, outputs in enumerate(steps):
        due = [shown[step][0] for shown in expected if step < len(shown) and shown[step]]
        assert [output.outputs for output in outputs] == ([due] if due else [])
    check_ends(steps, request)


@given(some_params, answer_lists)
@settings(max_examples=200, deadline=None)
def test_cumulative_outputs_show_every_branch_as_it_stands_where_one_is_due(
    params: SamplingParams, answers: list[tuple[list[int], str]]
) -> None:
    params = replace(params, n=len(answers), output_kind=CUMULATIVE)
    steps, request = run(params, answers)
    stands = [alone(replace(params, stream_interval=1), *answer, branch) for branch, answer in enumerate(answers)]
    due = [alone(params, *answer, branch) for branch, answer in enumerate(answers)]
    for step, outputs in enumerate(steps):
        is_due = any(step < len(shown) and shown[step] for shown in due)
        now = [shown[min(step, len(shown) - 1)][-1] for shown in stands]
        assert [output.outputs for output in outputs] == ([now] if is_due else [])
    check_ends(steps, request)


@given(some_params, answer_lists)
@settings(max_examples=100, deadline=None)
def test_final_only_shows_all_branches_once(params: SamplingParams, answers: list[tuple[list[int], str]]) -> None:
    params = replace(params, n=len(answers), output_kind=FINAL_ONLY)
    steps, request = run(params, answers)
    assert [len(outputs) for outputs in steps] == [0] * (len(steps) - 1) + [1]
    expected = [alone(params, *answer, branch)[-1][-1] for branch, answer in enumerate(answers)]
    assert steps[-1][0].outputs == expected
    assert steps[-1][0].metrics.num_generation_tokens == sum(len(answer.token_ids) for answer in expected)
    check_ends(steps, request)


def check_ends(steps: list[list[RequestOutput]], request: Request) -> None:
    """It is finished with the last output and not before, and stop strings ended just the branches they stand in."""
    shown = [output for outputs in steps for output in outputs]
    assert [output.finished for output in shown] == [False] * (len(shown) - 1) + [True]
    assert "r" not in request.processor
    stopped = {completion.index for output in shown for completion in output.outputs if completion.stop_reason}
    ended = {sequence - FIRST_SEQUENCE for _, sequence in request.scheduler.ended}  # type: ignore[misc]
    assert ended <= stopped


def test_without_text_a_token_is_kept_for_its_own_branch() -> None:
    request = Request(SamplingParams(n=3, detokenize=False, output_kind=FINAL_ONLY))
    assert request.step({0: 65, 1: 66, 2: 67}) == []
    assert request.step({0: 68, 1: 69, 2: 70}, {1: "STOP"}) == []
    (output,) = request.step({0: 71, 2: 72}, {0: "LENGTH", 2: "STOP"})
    assert [answer.token_ids for answer in output.outputs] == [[65, 68, 71], [66, 69], [67, 70, 72]]
    assert [answer.finish_reason for answer in output.outputs] == ["length", "stop", "stop"]
    assert [answer.stop_reason for answer in output.outputs] == [None, 69, 72]
    assert [answer.seed for answer in output.outputs] == [1000, 1001, 1002]
    assert output.metrics.num_generation_tokens == 8


def test_an_abort_ends_the_branches_that_run_and_leaves_those_that_have_ended() -> None:
    for kind, shown in ((CUMULATIVE, [0, 1, 2]), (DELTA, [0, 2]), (FINAL_ONLY, [0, 1, 2])):
        request = Request(SamplingParams(n=3, output_kind=kind))
        request.step({0: 65, 1: 66, 2: 67}, {1: "LENGTH"})
        output = request.processor.abort("r")
        assert output is not None
        assert output.finished
        assert [answer.index for answer in output.outputs] == shown
        reasons = {answer.index: answer.finish_reason for answer in output.outputs}
        assert reasons == {index: "length" if index == 1 else "abort" for index in shown}
        assert [answer.text for answer in output.outputs if answer.index != 1] == ["A", "C"], "what was held back"
        assert request.scheduler.ended == [(7,)]
        assert request.step({0: 65, 2: 67}) == [], "what a step in flight still had for it"


def test_a_branch_with_no_token_to_choose_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(SamplingParams(n=2))
    request.step({0: 65, 1: 66})
    with caplog.at_level(logging.ERROR):
        (output,) = request.step({0: None, 1: 67}, {0: "ERROR"})
    assert "request 'r' failed: its logits held a NaN" in caplog.text
    assert [answer.finish_reason for answer in output.outputs] == ["error", None]
    assert not output.finished
    (output,) = request.step({1: 68}, {1: "LENGTH"})
    assert [answer.finish_reason for answer in output.outputs] == ["error", "length"]
    assert output.finished


def test_a_branch_whose_text_fails_ends_the_request() -> None:
    tokenizer = ToyTokenizer()
    tokenizer.fails_on = 90
    request = Request(SamplingParams(n=3, stop="never"), tokenizer)
    request.step({0: 65, 1: 66, 2: 67}, {0: "LENGTH"})
    (output,) = request.step({1: 90, 2: 68})
    assert output.finished
    assert [answer.finish_reason for answer in output.outputs] == ["length", "error", "error"]
    assert [answer.token_ids for answer in output.outputs] == [[65], [66, 90], [67]]
    assert request.scheduler.ended == [(7,)]
    assert "r" not in request.processor


def test_a_stop_string_of_the_last_branch_ends_the_request_without_an_event() -> None:
    request = Request(SamplingParams(n=2, stop="X", max_tokens=9))
    request.step({0: 65, 1: 88})
    assert not request.scheduler.ended, "the toy stream holds a character back"
    (output,) = request.step({0: 88, 1: 65})
    assert [answer.finish_reason for answer in output.outputs] == [None, "stop"]
    assert request.scheduler.ended == [(7, FIRST_SEQUENCE + 1)]
    (output,) = request.step({0: 66})
    assert output.finished
    assert [(answer.text, answer.stop_reason) for answer in output.outputs] == [("A", "X"), ("", "X")]
    assert request.scheduler.ended == [(7, FIRST_SEQUENCE + 1), (7, FIRST_SEQUENCE)]


def test_prompt_logprobs_come_once_however_many_branches_there_are() -> None:
    request = Request(SamplingParams(n=2, output_kind=DELTA), num_prompt_logprobs=0)
    (first,) = request.step({0: 65, 1: 66})
    (second,) = request.step({0: 67, 1: 68}, {0: "LENGTH", 1: "LENGTH"})
    assert first.prompt_logprobs == [None], "of a prompt of one token"
    assert second.prompt_logprobs is None


# ---- the best of several


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_the_likeliest_are_shown_once_at_the_end_best_first(kind: RequestOutputKind) -> None:
    request = Request(SamplingParams(n=2, best_of=4, output_kind=kind))
    assert request.step({0: 65, 1: 66, 2: 67, 3: 68}, {2: "LENGTH"}, [-3, -1, -1.5, -1]) == []
    assert request.step({0: 69, 1: 70, 3: 71}, {0: "LENGTH", 3: "STOP"}, [-1, -2, 0, -0.25]) == []
    (output,) = request.step({1: 72}, {1: "LENGTH"}, [0, -1])
    assert [(answer.index, answer.text, answer.seed) for answer in output.outputs] == [(0, "D", 1003), (1, "C", 1002)]
    assert [answer.finish_reason for answer in output.outputs] == ["stop", "length"]
    assert [(answer.cumulative_logprob, answer.logprobs) for answer in output.outputs] == [(None, None)] * 2
    assert output.finished
    assert output.metrics.num_generation_tokens == 8, "those that are not kept were generated too"


def test_logprobs_of_the_best_are_shown_where_they_were_asked_for() -> None:
    request = Request(SamplingParams(n=1, best_of=3, logprobs=0))
    (output,) = request.step({0: 65, 1: 66, 2: 67}, dict.fromkeys(range(3), "LENGTH"), [-3, -1, -2])
    (answer,) = output.outputs
    assert (answer.index, answer.token_ids, answer.cumulative_logprob, answer.seed) == (0, [66], -1.0, 1001)
    assert answer.logprobs is not None
    assert answer.logprobs[0][66].logprob == -1.0


def test_of_equals_the_first_is_best_and_one_that_failed_is_worst() -> None:
    request = Request(SamplingParams(n=3, best_of=4))
    reasons = {0: "ERROR", 1: "LENGTH", 2: "LENGTH", 3: "LENGTH"}
    (output,) = request.step({0: None, 1: 66, 2: 67, 3: 68}, reasons, [0, -2, -1, -2])
    assert [answer.token_ids for answer in output.outputs] == [[67], [66], [68]]
    request = Request(SamplingParams(n=1, best_of=2))
    request.step({0: 65, 1: 66}, {}, [-1, -2])
    output = request.processor.abort("r")  # type: ignore[assignment]
    assert [(answer.text, answer.finish_reason) for answer in output.outputs] == [("A", "abort")]
