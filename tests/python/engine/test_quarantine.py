"""A broken invariant of the scheduler: whoever it concerns fails, and nobody else; the engine goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from engine.fakes import toy_engine, toy_greedy

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams

# In blocks of four: once two steps have passed, nobody needs a new one in the third.
PROMPTS = {"a": [70, 71, 72, 73, 74], "b": [75, 76, 77, 78, 79, 80], "c": [81, 82, 83, 84, 85, 86]}
MAX_TOKENS = 12


def add_all(engine: LLMEngine, **params: Any) -> None:
    for name, prompt in PROMPTS.items():
        wanted = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, **params)
        engine.add_request(name, {"prompt_token_ids": prompt}, wanted)


def run(engine: LLMEngine) -> dict[str, RequestOutput]:
    """The last output of each request, once all have ended."""
    last: dict[str, RequestOutput] = {}
    for _ in range(200):
        if not engine.has_unfinished_requests():
            return last
        last.update((output.request_id, output) for output in engine.step())
        engine.scheduler.check_invariants()
    raise AssertionError("requests that never end")


def assert_answered(outputs: dict[str, RequestOutput], *names: str) -> None:
    for name in names:
        answer = outputs[name].outputs[0]
        assert answer.finish_reason == "length"
        assert list(answer.token_ids) == toy_greedy(PROMPTS[name], MAX_TOKENS, stops=())


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_broken_invariant_fails_its_owner_alone_and_quarantines_its_blocks(
    async_scheduling: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = toy_engine(async_scheduling=async_scheduling)
    add_all(engine)
    for _ in range(1 if async_scheduling else 2):  # the next step that is planned is the third
        engine.step()
    engine.scheduler._give_back_too_early(1)
    with caplog.at_level(logging.ERROR):
        outputs = run(engine)
    assert outputs["b"].finished
    assert outputs["b"].outputs[0].finish_reason == "error"
    said = list(outputs["b"].outputs[0].token_ids)
    assert 0 < len(said) < MAX_TOKENS
    assert said == toy_greedy(PROMPTS["b"], len(said), stops=())
    assert_answered(outputs, "a", "c")
    assert "a broken invariant" in caplog.text
    assert "fail: 'b'. 1 KV blocks are out of use" in caplog.text
    assert "tables hold it" in caplog.text
    assert engine.scheduler.num_quarantined_blocks == 1
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks - 1
    add_all(engine)
    assert_answered(run(engine), "a", "b", "c")


def test_all_answers_of_a_request_fail_together_before_they_part_and_after() -> None:
    for num_steps in (0, 3):
        engine = toy_engine(max_num_batched_tokens=6)  # so that the prompt takes two steps
        wanted = SamplingParams(seed=1, max_tokens=MAX_TOKENS, n=3, ignore_eos=True)
        engine.add_request("many", {"prompt_token_ids": list(range(60, 68))}, wanted)
        for _ in range(1 + num_steps):
            engine.step()
        engine.scheduler._give_back_too_early(0)
        outputs = run(engine)
        assert [answer.finish_reason for answer in outputs["many"].outputs] == ["error"] * 3


def test_beams_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    wanted = SamplingParams(
        temperature=0,
        max_tokens=MAX_TOKENS,
        use_beam_search=True,
        n=2,
        best_of=2,
        ignore_eos=True,
        allowed_token_ids=list(range(60, 100)),
    )
    engine.add_request("beams", {"prompt_token_ids": PROMPTS["a"]}, wanted)
    add_all(engine)
    for _ in range(3):
        engine.step()
    engine.scheduler._give_back_too_early(0)

    def broken() -> None:
        monkeypatch.undo()
        raise RuntimeError("broken invariant")

    monkeypatch.setattr(engine, "_planned", broken)
    outputs = run(engine)
    assert {answer.finish_reason for answer in outputs["beams"].outputs} == {"error"}
    assert_answered(outputs, "a", "b", "c")


def test_an_error_that_is_not_the_schedulers_own_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    add_all(engine)
    engine.step()

    def broken() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine.worker, "before_step", broken)
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    monkeypatch.setattr(engine.worker, "before_step", None)
    assert_answered(run(engine), "a", "b", "c")
    assert engine.scheduler.num_quarantined_blocks == 0


def test_an_engine_looks_for_broken_references_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = toy_engine()
    now = [0]
    monkeypatch.setattr(engine.clock, "source", lambda: now[0])
    looks = []
    check = engine._containment._scheduler.check_references

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.scheduler, name)

        def check_references(self) -> None:
            looks.append(now[0])
            check()

    monkeypatch.setattr(engine._containment, "_scheduler", Watched())
    for now[0] in (0, 10**9 - 1, 10**9, 10**9 + 1, 3 * 10**9):
        add_all(engine)
        run(engine)
    assert looks == [0, 10**9, 3 * 10**9]
    now[0] += 10**9
    add_all(engine)
    engine.step()
    engine.scheduler._give_back_too_early(15)
    engine.abort_request("a")  # which finds its block free, and nobody throws
    with caplog.at_level(logging.ERROR):
        outputs = run(engine)
    assert_answered(outputs, "b", "c")
    assert "found one of its blocks free" in caplog.text


def test_what_nobody_trips_over_is_found_within_a_second_while_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    now = [0]
    monkeypatch.setattr(engine.clock, "source", lambda: now[0])
    add_all(engine)
    engine.step()
    engine.step()
    engine.scheduler._give_back_too_early(1)
    wanted = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    engine.add_request("late", {"prompt_token_ids": [87, 88, 89]}, wanted)  # gets that block: now it is in two tables
    now[0] = 10**9
    failed = [output for output in engine.step() if output.finished]
    assert [(output.request_id, output.outputs[0].finish_reason) for output in failed] == [
        ("b", "error"),
        ("late", "error"),
    ]
    engine.scheduler.check_invariants()
    assert_answered(run(engine), "a", "c")
