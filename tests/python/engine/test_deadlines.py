"""Requests whose time is up: in every state, by a clock that the test moves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from engine.async_tools import PROMPTS, answer, collect, greedy, inner, run, served, worker_of
from engine.fake_clock import SECOND, assert_nothing_is_held, finished_by, on_fake_clock, run_to_the_end
from engine.fakes import toy_engine, toy_greedy

from fastpaged import AsyncLLMEngine, InvalidRequestError, RequestOutput, RequestOutputKind, SamplingParams
from fastpaged.engine.request_terms import NEVER, RequestTerms, point_in_time

ABORTED = {"deadline": ("abort", "deadline"), "queue_timeout": ("abort", "queue_timeout")}
engine = pytest.fixture(served)


# ---- one request


def test_a_request_ends_at_its_deadline_with_what_it_has_and_not_a_tick_before() -> None:
    engine = toy_engine()
    clock = on_fake_clock(engine)
    engine.add_request("r", PROMPTS[0], greedy(20), deadline=2.5)
    given = [engine.step()[0] for _ in range(4)]
    clock.now += round(2.5 * SECOND) - 1
    given += engine.step()
    assert not given[-1].finished
    clock.now += 1
    (last,) = engine.step()
    assert finished_by([last]) == {"r": ABORTED["deadline"]}
    assert last.outputs[0].token_ids == answer(PROMPTS[0])[:5]
    assert last.outputs[0].text == "".join(map(chr, answer(PROMPTS[0])[:5]))  # what was held back is shown
    assert last.metrics.num_generation_tokens == 5
    assert last.metrics.first_token_latency is not None
    assert engine.step() == []
    assert_nothing_is_held(engine)


def test_text_that_may_have_become_a_stop_string_is_shown_when_time_is_up() -> None:
    engine = toy_engine()
    clock = on_fake_clock(engine)
    text = "".join(map(chr, answer(PROMPTS[0])))
    params = SamplingParams(
        temperature=0, max_tokens=20, ignore_eos=True, stop=text[3:9], output_kind=RequestOutputKind.DELTA
    )
    engine.add_request("r", PROMPTS[0], params, deadline=1)
    shown = "".join(engine.step()[0].outputs[0].text for _ in range(6))
    assert shown == text[:3]
    clock.pass_seconds(1)
    (last,) = engine.step()
    assert finished_by([last]) == {"r": ABORTED["deadline"]}
    assert shown + last.outputs[0].text == text[:6]
    assert last.outputs[0].token_ids == []  # the delta


def test_who_never_began_in_time_never_runs() -> None:
    engine = toy_engine(max_num_seqs=1)
    clock = on_fake_clock(engine)
    engine.add_request("runs", PROMPTS[0], greedy(20), queue_timeout=1)
    engine.add_request("waits", PROMPTS[1], greedy(20), queue_timeout=1)
    engine.add_request("patient", PROMPTS[2], greedy(20))
    engine.step()
    clock.pass_seconds(1)
    outputs = engine.step()
    assert finished_by(outputs) == {"waits": ABORTED["queue_timeout"]}
    (waited,) = (output for output in outputs if output.finished)
    assert waited.outputs[0].token_ids == []
    assert waited.metrics.scheduled_ts is None
    assert waited.metrics.first_token_ts is None
    clock.pass_seconds(100)
    finished = run_to_the_end(engine)
    assert finished["runs"].outputs[0].token_ids == answer(PROMPTS[0])
    assert finished["patient"].outputs[0].token_ids == answer(PROMPTS[2])
    assert_nothing_is_held(engine)


@pytest.mark.parametrize(("own", "second"), [(None, 2), (5.0, 5), (math.inf, None)])
def test_a_request_s_own_queue_timeout_takes_the_place_of_the_engine_s(own: float | None, second: int | None) -> None:
    engine = toy_engine(max_num_seqs=1, queue_timeout=2.0)
    clock = on_fake_clock(engine)
    engine.add_request("runs", PROMPTS[0], greedy(40))
    engine.step()
    engine.add_request("waits", PROMPTS[1], greedy(3), queue_timeout=own)
    ended = []
    for now in range(1, 7):
        clock.pass_seconds(1)
        if "waits" in finished_by(engine.step()):
            ended.append(now)
    assert ended == ([] if second is None else [second])


def test_the_earlier_of_two_times_is_the_reason() -> None:
    for deadline, timeout, reason in ((1.0, 2.0, "deadline"), (2.0, 1.0, "queue_timeout")):
        engine = toy_engine(max_num_seqs=1)
        clock = on_fake_clock(engine)
        engine.add_request("runs", PROMPTS[0], greedy(20))
        engine.step()
        engine.add_request("waits", PROMPTS[1], greedy(20), deadline=deadline, queue_timeout=timeout)
        clock.pass_seconds(3)
        assert finished_by(engine.step()) == {"waits": ABORTED[reason]}


# ---- in every state, of every kind


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("state", ["waiting", "prefilling", "running", "preempted"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_time_is_up_in_any_state_and_frees_every_block_at_once(state: str, mode: str, overlaps: bool) -> None:
    engine = toy_engine(
        num_blocks=12, num_host_blocks=12, block_size=2, preemption_mode=mode, max_num_batched_tokens=6,
        enable_prefix_caching=False, async_scheduling=overlaps,
    )  # fmt: skip
    clock = on_fake_clock(engine)
    scheduler = engine.scheduler
    engine.add_request("older", [70] * 9, greedy(14))
    engine.step()
    engine.step()
    prompt = [71] * (24 if state == "waiting" else 10)
    engine.add_request("victim", prompt, greedy(8), deadline=1)
    for _ in range(40):
        if state == "waiting" or (state == "prefilling" and scheduler.num_running == 2):
            break
        outputs = engine.step()
        if state == "running" and any(output.request_id == "victim" for output in outputs):
            break
        if state == "preempted" and scheduler.stats.num_preemptions:
            break
    clock.pass_seconds(1)
    finished: dict[str, RequestOutput] = {}
    num_steps = 0
    while "victim" not in finished:
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        num_steps += 1
        scheduler.check_invariants()
    assert num_steps <= 1 + overlaps  # what is in flight was planned before
    assert finished_by([finished["victim"]]) == {"victim": ABORTED["deadline"]}
    assert scheduler.num_free_host_blocks == 12
    tokens = finished["victim"].outputs[0].token_ids
    assert tokens == toy_greedy(prompt, 8, stops=())[: len(tokens)]
    assert (len(tokens) > 0) == (state in ("running", "preempted"))
    finished |= run_to_the_end(engine)
    assert finished["older"].outputs[0].token_ids == toy_greedy([70] * 9, 14, stops=())
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("begun", [False, True])
def test_all_samples_of_a_request_end_with_its_time(begun: bool) -> None:
    engine = toy_engine(max_num_seqs=4)
    clock = on_fake_clock(engine)
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    engine.add_request("r", PROMPTS[0], params, deadline=1)
    whole = run_to_the_end(engine)["r"]
    engine.add_request("r", PROMPTS[0], params, deadline=1)
    for _ in range(3 * begun):
        engine.step()
    clock.pass_seconds(1)
    (last,) = engine.step()
    assert last.finished
    assert [(a.finish_reason, a.stop_reason) for a in last.outputs] == [ABORTED["deadline"]] * 3
    assert [a.token_ids for a in last.outputs] == [a.token_ids[: 3 * begun] for a in whole.outputs]
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("stop", [None, "~~~"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_beam_search_whose_time_is_up_shows_its_best_beams_as_they_stand(begun: bool, stop: str | None) -> None:
    engine = toy_engine(max_num_seqs=4)
    clock = on_fake_clock(engine)
    params = SamplingParams(
        n=2, best_of=3, use_beam_search=True, temperature=0, max_tokens=9, ignore_eos=True, stop=stop
    )
    engine.add_request("beams", PROMPTS[0], params, deadline=1)
    engine.add_request("other", PROMPTS[1], greedy(6))
    for _ in range(4 * begun):
        engine.step()
    clock.pass_seconds(1)
    (last,) = (output for output in engine.step() if output.request_id == "beams")
    assert last.finished
    assert [(a.finish_reason, a.stop_reason) for a in last.outputs] == [ABORTED["deadline"]] * (2 if begun else 1)
    assert {len(a.token_ids) for a in last.outputs} == {4 * begun}
    assert run_to_the_end(engine)["other"].outputs[0].token_ids == answer(PROMPTS[1], 6)
    assert_nothing_is_held(engine)


def test_a_step_with_nothing_but_ends_computes_nothing() -> None:
    engine = toy_engine()
    clock = on_fake_clock(engine)
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], greedy(5), deadline=1 + i)
    clock.pass_seconds(3)
    worker: Any = engine.worker
    batches = []
    execute = worker.execute

    def execute_counted(batch: Any) -> Any:
        batches.append(len(batch.token_ids))
        return execute(batch)

    worker.execute = execute_counted
    assert finished_by(engine.step()) == {str(i): ABORTED["deadline"] for i in range(3)}
    assert batches == [0]
    assert_nothing_is_held(engine)


# ---- what is asked for


@pytest.mark.parametrize("name", ["deadline", "queue_timeout"])
@pytest.mark.parametrize("value", [0, -1, math.nan, "1", True])
def test_a_time_that_is_none_is_refused(name: str, value: Any) -> None:
    engine = toy_engine()
    with pytest.raises(InvalidRequestError, match=f"^{name} must be None or a number of seconds > 0, got "):
        engine.add_request("r", PROMPTS[0], greedy(5), **{name: value})
    assert not engine.has_unfinished_requests()


def test_seconds_become_points_in_time_and_what_lies_behind_all_time_is_never() -> None:
    assert point_in_time(5, 1.5) == 5 + 1_500_000_000
    assert point_in_time(5, 1e-12) == 6  # not at once
    assert point_in_time(5, None) == point_in_time(5, math.inf) == point_in_time(5, 1e300) == NEVER
    assert point_in_time(NEVER - 10, 1.0) == NEVER
    assert RequestTerms(deadline=1) == RequestTerms(0, 1.0, None)


# ---- coroutines


def test_a_generator_ends_with_the_output_that_says_why(engine: AsyncLLMEngine) -> None:
    clock = on_fake_clock(inner(engine))

    steps = itertools.count()
    worker_of(engine).before_step = lambda: clock.pass_seconds(3 if next(steps) == 4 else 0)
    outputs = run(collect(engine.generate(PROMPTS[0], greedy(40), deadline=3)))
    assert finished_by(outputs) == {outputs[0].request_id: ABORTED["deadline"]}
    assert outputs[-1].outputs[0].token_ids == answer(PROMPTS[0], 40)[:5]


def test_the_time_of_a_request_begins_when_it_is_asked_for(
    engine: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = on_fake_clock(inner(engine))
    thread = engine._thread
    add = thread.add

    def add_late(*arguments: Any) -> None:
        clock.pass_seconds(2)  # as if a step had taken so long meanwhile
        add(*arguments)

    monkeypatch.setattr(thread, "add", add_late)
    (last,) = run(collect(engine.generate(PROMPTS[0], greedy(4), queue_timeout=1)))
    assert finished_by([last]) == {last.request_id: ABORTED["queue_timeout"]}
    (*_, last) = run(collect(engine.generate(PROMPTS[0], greedy(4), deadline=1)))
    assert finished_by([last]) == {last.request_id: ABORTED["deadline"]}
    with pytest.raises(InvalidRequestError, match="deadline must be"):
        run(collect(engine.generate(PROMPTS[0], greedy(4), deadline=0)))
