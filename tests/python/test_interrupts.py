"""Ctrl-C anywhere in generate(): its own requests go, nobody else's change, and the LLM stays usable."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fastpaged import LLM, InvalidRequestError, RequestLostError, RequestOutput, SamplingParams
from fastpaged.engine.deferred_signals import DeferredSignals

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1)
TRACED = ("llm.py", "llm_engine.py", "deferred_signals.py", "in_process.py", "worker.py", "text_stream.py")


@pytest.fixture(autouse=True)
def python_hears_sigint() -> Iterator[None]:
    """A shell that runs the tests in the background may have told them to ignore it."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


@pytest.fixture
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=64) as llm:
        yield llm


class InterruptAt:
    """Raises SIGINT before the n-th line, counted from 0, that the engine's own Python executes."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.reached = False

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(TRACED) or self.reached:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.reached = True
                signal.raise_signal(signal.SIGINT)
        return self._trace


def completion(output: RequestOutput) -> tuple[Any, ...]:
    answer = output.outputs[0]
    return answer.token_ids, answer.text, answer.logprobs, answer.finish_reason


def test_an_interrupt_at_any_line_harms_only_the_call_it_interrupts(llm: LLM) -> None:
    expected_stream = completion(list(llm.stream("the cat", PARAMS))[-1])
    expected_answers = [completion(output) for output in llm.generate(["a", "b"], PARAMS)]
    interrupted = 0
    for line in range(100_000):
        stream = llm.stream("the cat", PARAMS)
        next(stream)
        at = InterruptAt(line)
        try:
            with at:
                llm.generate(["a", "b"], PARAMS)
        except KeyboardInterrupt:
            interrupted += 1
        assert completion(list(stream)[-1]) == expected_stream, line
        llm.engine.scheduler.check_invariants()
        if not at.reached:
            break
    assert not at.reached
    assert interrupted > 100
    assert [completion(output) for output in llm.generate(["a", "b"], PARAMS)] == expected_answers
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.scheduler.num_free_blocks == llm.engine.scheduler.num_blocks
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_deferred_interrupt_comes_when_the_outermost_context_is_left() -> None:
    reached = []

    def nested() -> None:
        with DeferredSignals():
            with DeferredSignals():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert reached == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_defer_nothing_and_touch_no_handler() -> None:
    seen = []

    def run() -> None:
        with DeferredSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


# ---- the engine below, used beside the calls in progress


def test_a_stream_whose_request_is_aborted_in_the_engine_says_so(llm: LLM) -> None:
    stream = llm.stream("hello", PARAMS)
    llm.engine.abort_request(next(stream).request_id)
    with pytest.raises(RequestLostError, match=r"request '0' was ended"):
        next(stream)
    assert len(llm.generate("hello", PARAMS)[0].outputs[0].token_ids) == 4


def test_a_stream_whose_engine_is_stepped_by_another_says_so(llm: LLM) -> None:
    stream = llm.stream("hello", PARAMS)
    next(stream)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    with pytest.raises(RequestLostError):
        next(stream)


def test_ids_given_to_the_engine_directly_do_not_collide_with_those_of_generate(llm: LLM) -> None:
    llm.engine.add_request("0", "hello", PARAMS)
    output = llm.generate("abc", PARAMS)[0]
    assert output.finished
    assert output.request_id == "1"


def test_abort_names_a_request_id_of_the_wrong_type(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="request_id must be a string, got list"):
        llm.engine.abort_request([])  # type: ignore[arg-type]
