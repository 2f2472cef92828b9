"""Output kinds and stop strings, request by request and in the engine: what is shown when, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine.fakes import EOS, POISON, ToyTokenizer, toy_engine, toy_greedy
from engine.plain_answers import (
    EagerTokenizer,
    EndedSequences,
    Events,
    answered,
    check_outputs,
    cut,
    eager_engine,
    first_stop,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.output_processor import OutputProcessor
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

# ---- one request


def test_a_stop_within_the_first_min_tokens_is_text_and_one_that_reaches_beyond_them_stops() -> None:
    def text_and_reason(stop: str, min_tokens: int) -> tuple[str, object]:
        params = SamplingParams(stop=stop, min_tokens=min_tokens)
        outputs, _ = answered(EagerTokenizer(), [], [ord(character) for character in "ababc"], params)
        return outputs[-1].outputs[0].text, outputs[-1].outputs[0].stop_reason

    assert text_and_reason("ab", 0) == ("", "ab")
    assert text_and_reason("ab", 1) == ("", "ab"), "it begins within them and ends beyond"
    assert text_and_reason("ab", 2) == ("ab", "ab")
    assert text_and_reason("ab", 4) == ("ababc", None)


@pytest.mark.parametrize("num_bytes", [0, 64, 88, 95, 97, 104, 192])
def test_an_event_of_another_size_than_the_core_writes_is_refused(num_bytes: int) -> None:
    events: Any = Events(bytes(num_bytes))
    with pytest.raises(RuntimeError, match=f"1 events must be 96 bytes each, got {num_bytes} in all"):
        OutputProcessor(EagerTokenizer(), EndedSequences()).process(None, events)  # type: ignore[arg-type]


def test_held_text_comes_with_the_token_that_rules_the_stop_out_and_every_token_has_an_output() -> None:
    params = SamplingParams(stop="aab", output_kind=RequestOutputKind.DELTA)
    outputs, _ = answered(EagerTokenizer(), [], [ord(character) for character in "xaaac"], params)
    assert [output.outputs[0].text for output in outputs] == ["x", "", "", "a", "aac"]


@pytest.mark.parametrize(("ends", "shown"), [("LENGTH", "xaa"), ("ERROR", "xaa"), ("ABORT", "xaa"), ("STOP", "xa")])
def test_held_text_is_shown_when_the_answer_ends_otherwise(ends: str, shown: str) -> None:
    for output_kind in RequestOutputKind:
        params = SamplingParams(stop="aab", output_kind=output_kind, logprobs=0)
        outputs, _ = answered(EagerTokenizer(), [], [ord(character) for character in "xaa"], params, ends=ends)
        check_outputs(outputs, output_kind, [120, 97, 97], shown, (ends, output_kind))
        assert outputs[-1].outputs[0].finish_reason == ends.lower()


@pytest.mark.parametrize(
    ("ends", "reason", "stop_reason"),
    [("LENGTH", "stop", "ab"), ("STOP", "stop", "ab"), ("ERROR", "error", None), ("ABORT", "abort", None)],
)
def test_a_stop_string_in_the_last_of_the_text_cuts_it_however_the_answer_ends(
    ends: str, reason: str, stop_reason: str | None
) -> None:
    """The toy stream holds the last character back, and with it the stop string, to the very end."""
    output = [120, 97, 98, EOS] if ends == "STOP" else [120, 97, 98]
    for output_kind in RequestOutputKind:
        params = SamplingParams(stop="ab", output_kind=output_kind, logprobs=0)
        outputs, _ = answered(ToyTokenizer(), [], output, params, ends=ends)
        check_outputs(outputs, output_kind, output, "x", (ends, output_kind))
        assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == (reason, stop_reason)


@pytest.mark.parametrize(("included", "shown"), [(False, "x"), (True, "xa")])
@pytest.mark.parametrize(("ignore_eos", "token_id", "reason"), [(False, 97, 97), (False, EOS, None), (True, EOS, EOS)])
def test_a_stop_token_is_the_reason_unless_it_is_end_of_sequence(
    included: bool, shown: str, ignore_eos: bool, token_id: int, reason: int | None
) -> None:
    params = SamplingParams(stop_token_ids=[97, EOS], include_stop_str_in_output=included, ignore_eos=ignore_eos)
    outputs, _ = answered(EagerTokenizer(), [], [120, token_id], params, ends="STOP")
    answer = outputs[-1].outputs[0]
    assert (answer.finish_reason, answer.stop_reason, answer.token_ids) == ("stop", reason, [120, token_id])
    assert answer.text == shown.replace("a", chr(token_id))


def test_a_stop_string_that_ends_with_the_last_token_allowed_is_a_stop() -> None:
    outputs, scheduler = answered(EagerTokenizer(), [], [97, 98], SamplingParams(stop="b"))
    assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", "b")
    assert scheduler.ended == [], "the scheduler has ended it already"


# ---- in the engine


def toy_stop(prompt: list[int], start: int, length: int, max_tokens: int = 12) -> str:
    """What a greedy answer says from its `start`-th token on."""
    return "".join(map(chr, toy_greedy(prompt, max_tokens, stops=())))[start : start + length]


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(5, 127), min_size=1, max_size=12),
        st.integers(0, 11),  # where in the answer the stop string begins
        st.integers(1, 4),  # its length
        st.sampled_from(list(RequestOutputKind)),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(
    requests=REQUESTS,
    num_blocks=st.integers(6, 20),
    num_host_blocks=st.integers(0, 12),
    mode=st.sampled_from(["recompute", "swap"]),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_stops_and_kinds_survive_company_preemption_and_aborts(
    requests: list[tuple[list[int], int, int, RequestOutputKind, bool]],
    num_blocks: int,
    num_host_blocks: int,
    mode: str,
    data: st.DataObject,
) -> None:
    engine = eager_engine(num_blocks=num_blocks, num_host_blocks=num_host_blocks, preemption_mode=mode, max_num_seqs=4)
    all_params: dict[str, SamplingParams] = {}
    for i, (prompt, start, length, output_kind, included) in enumerate(requests):
        all_params[str(i)] = SamplingParams(
            temperature=0,
            max_tokens=12,
            ignore_eos=True,
            stop=toy_stop(prompt, start, length) or "never",
            include_stop_str_in_output=included,
            output_kind=output_kind,
            logprobs=1,
        )
        engine.add_request(str(i), prompt, all_params[str(i)])
    seen: dict[str, list[RequestOutput]] = {request_id: [] for request_id in all_params}
    while engine.has_unfinished_requests():
        engine.scheduler.preempt(data.draw(st.integers(0, len(requests))), mode)
        if data.draw(st.integers(0, 15)) == 0:
            output = engine.abort_request(str(data.draw(st.integers(0, len(requests)))))
            if output is not None:
                seen[output.request_id].append(output)
        for output in engine.step():
            seen[output.request_id].append(output)
            assert not output.finished or int(output.request_id) not in scheduled(engine), "it gave its blocks back"
        engine.scheduler.check_invariants()
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert engine.scheduler.num_free_host_blocks == engine.scheduler.num_host_blocks
    for i, (prompt, *_) in enumerate(requests):
        check_engine_answer(prompt, all_params[str(i)], seen[str(i)])


def scheduled(engine: LLMEngine) -> list[int]:
    """Group ids that the scheduler still knows."""
    return [group_id for group_id in range(8) if is_known(engine, group_id)]


def is_known(engine: LLMEngine, group_id: int) -> bool:
    try:
        return bool(engine.scheduler.sequences(group_id))
    except ValueError:
        return False


def check_engine_answer(prompt: list[int], params: SamplingParams, outputs: list[RequestOutput]) -> None:
    answers = [output.outputs[0] for output in outputs]
    joined = answers if params.output_kind is RequestOutputKind.DELTA else answers[-1:]
    token_ids = [token_id for answer in joined for token_id in answer.token_ids]
    text = "".join(answer.text for answer in joined)
    logprobs = [entry for answer in joined for entry in answer.logprobs or []]
    reason = answers[-1].finish_reason
    assert isinstance(params.stop, tuple)
    plain = toy_greedy(prompt, 12, stops=())
    found = first_stop("".join(map(chr, plain)), params.stop)
    assert token_ids == plain[: len(token_ids)]
    assert [next(iter(entry)) for entry in logprobs] == token_ids
    assert text == cut("".join(map(chr, token_ids)), params.stop, params.include_stop_str_in_output)
    if reason == "stop":
        assert found == (len(token_ids), answers[-1].stop_reason), "nothing of a token beyond the stop remains"
    elif reason == "length":
        assert found is None or len(token_ids) < found[0], "or the pool had no room for more"
    else:
        assert reason == "abort" or (reason == "error" and POISON in [*prompt, *token_ids])


def test_a_stop_frees_the_blocks_in_the_step_it_is_seen_in() -> None:
    engine = eager_engine()
    stop = toy_stop([65, 66], 2, 2)
    engine.add_request("r", "AB", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop))
    for _ in range(3):
        assert not engine.step()[0].finished
        assert engine.scheduler.num_free_blocks < engine.scheduler.num_blocks
    (output,) = engine.step()
    assert (output.finished, output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (True, "stop", stop)
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    assert not engine.scheduler.has_unfinished()
    assert engine.step() == []


def test_without_detokenize_there_is_no_text_and_the_same_tokens() -> None:
    engine = toy_engine()
    engine.tokenizer.fails_on = toy_greedy([65, 66], 8, stops=())[2]  # type: ignore[attr-defined]  # nobody asks it
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
    engine.add_request("r", "AB", replace(params, detokenize=False), final_only=True)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    (answer,) = outputs[0].outputs
    assert (answer.text, answer.token_ids) == ("", toy_greedy([65, 66], 8, stops=()))
    assert answer.logprobs is not None
    assert {logprob.decoded_token for entry in answer.logprobs for logprob in entry.values()} == {None}


def test_final_only_of_the_caller_overrides_the_kind_of_the_params() -> None:
    engine = eager_engine()
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    engine.add_request("r", "AB", params, final_only=True)
    outputs = [output for _ in range(3) for output in engine.step()]
    assert [output.outputs[0].token_ids for output in outputs] == [toy_greedy([65, 66], 3, stops=())]


def test_a_text_that_fails_keeps_as_many_logprobs_as_tokens_and_the_held_text() -> None:
    engine = toy_engine()
    expected = toy_greedy([65, 66], 4, stops=())
    engine.tokenizer.fails_on = expected[3]  # type: ignore[attr-defined]
    stop = chr(expected[1]) + "never"
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0, stop=stop)
    engine.add_request("r", "AB", params)
    outputs = [output for _ in range(4) for output in engine.step()]
    answer = outputs[-1].outputs[0]
    assert answer.finish_reason == "error"
    assert answer.token_ids == expected
    assert len(answer.logprobs or []) == len(answer.token_ids)
    assert answer.text == "".join(map(chr, expected[:2]))  # the toy stream holds one more back
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("output_kind", list(RequestOutputKind))
def test_preemption_at_every_step_changes_nothing_of_what_is_shown(mode: str, output_kind: RequestOutputKind) -> None:
    stop = toy_stop([65, 66], 6, 3)
    params = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, stop=stop, logprobs=1, output_kind=output_kind
    )
    shown = []
    for preempted in (False, True):
        engine = eager_engine(num_host_blocks=16)
        engine.add_request("r", "AB", params)
        outputs: list[RequestOutput] = []
        while engine.has_unfinished_requests():
            if preempted:
                engine.scheduler.preempt(0, mode)
            outputs += engine.step()
        assert outputs[-1].metrics.num_preemptions == (8 if preempted else 0)
        shown.append([output.outputs[0] for output in outputs])
    assert shown[0] == shown[1]
    assert shown[0][-1].stop_reason == stop


def test_the_engine_tells_a_stop_token_from_a_stop_string() -> None:
    expected = toy_greedy([65, 66], 8, stops=())
    for stops, reason in (({"stop_token_ids": [expected[2]]}, expected[2]), ({"stop": chr(expected[2])}, None)):
        engine = eager_engine()
        engine.add_request("r", "AB", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, **stops))  # type: ignore[arg-type]
        answer = [output for _ in range(3) for output in engine.step()][-1].outputs[0]
        assert (answer.finish_reason, answer.token_ids) == ("stop", expected[:3])
        assert answer.text == "".join(map(chr, expected[:2]))
        assert answer.stop_reason == (chr(expected[2]) if reason is None else reason)
