"""What a recording engine writes, when, and what becomes of it where nothing can be written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from engine.fakes import toy_engine

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine import recorder
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.recorder import STOP, RecordingScheduler
from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams
from fastpaged.simulator.replay import replay

# What changes nothing, and so is not written.
READS = {
    "cached_blocks", "cached_free_blocks", "cached_free_host_blocks", "num_cached_host_blocks",
    "check_invariants", "check_references", "free_blocks", "free_host_blocks", "has_unfinished",
    "num_blocks", "num_free_blocks", "num_free_host_blocks", "num_held_blocks", "num_host_blocks", "num_logical_blocks",
    "max_cache_events", "num_preemptions", "num_quarantined_blocks", "num_running", "num_swapped", "num_waiting",
    "pins", "request_cost", "sequences", "slot_splits", "snapshot", "stats", "take_cache_events",
}  # fmt: skip


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds_of(path: Path) -> list[str]:
    return [event["e"] for event in events_of(path)]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests():
        engine.step()
        engine.scheduler.check_invariants()
        if isinstance(engine.scheduler, RecordingScheduler):
            engine.scheduler._paths.check_invariants()
    if isinstance(engine.scheduler, RecordingScheduler):
        assert engine.scheduler._positions == {}


def test_whatever_changes_the_scheduler_is_written_down() -> None:
    changes = {name for name in vars(_core.Scheduler) if not name.startswith("_")} - READS
    assert changes == {name for name in vars(RecordingScheduler) if not name.startswith("_")}


def test_without_a_file_the_scheduler_is_the_core_s_own() -> None:
    assert type(toy_engine().scheduler) is _core.Scheduler


def test_each_step_is_in_the_file_when_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path))
    engine.add_request("a", {"prompt_token_ids": [70, 80]}, greedy(2))
    engine.step()
    assert kinds_of(path) == ["recording", "add", "plan", "update"]
    run(engine)
    engine.close()
    assert kinds_of(path)[4:] == ["plan", "update"]
    header = events_of(path)[0]
    assert (header["format"], header["model"], header["scheduler"]["num_blocks"]) == (1, "toy", 64)
    assert events_of(path)[-1]["ends"] == [[0, 0, "length"]]


def test_a_step_in_which_everybody_decodes_takes_few_bytes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path), num_blocks=200)
    for i in range(16):
        engine.add_request(str(i), {"prompt_token_ids": [70 + i, 80]}, greedy(32))
    run(engine)
    engine.close()
    plans = [line for line in path.read_text().splitlines() if '"e":"plan"' in line]
    assert sum(len(line) < 40 for line in plans) >= len(plans) - 2


def test_what_is_done_to_the_scheduler_by_hand_is_replayed_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path), num_blocks=16, num_host_blocks=8)
    scheduler = engine.scheduler
    prompt = list(range(70, 82))
    scheduler.pin(3, prompt[:8], "mine")
    engine.add_request("a", {"prompt_token_ids": prompt, "cache_salt": "mine"}, greedy(9))
    engine.add_request("b", {"prompt_token_ids": prompt}, greedy(9))
    scheduler.set_costs(_core.PreemptionCosts(seconds_per_token=0.5))
    engine.step()
    scheduler.preempt(1, "swap")
    engine.step()
    scheduler.preempt(0, "recompute")
    engine.step()
    scheduler.fork(1, scheduler.sequences(1)[0])
    scheduler.reset_prefix_cache()
    engine.step()
    scheduler.unpin(3)
    scheduler.unpin(3)
    engine.abort_request("a")
    run(engine)
    engine.add_request("c", {"prompt_token_ids": prompt}, greedy(9))
    engine.step()
    scheduler.reset()
    engine.close()
    assert {"pin", "unpin", "costs", "preempt", "fork", "reset_prefix_cache", "abort", "reset"} <= set(kinds_of(path))
    result = replay(str(path))
    assert (result.num_differences, result.stats["num_groups_swapped_out"]) == (0, 1)


def test_a_step_that_failed_is_a_plan_without_results(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path))

    def fail() -> None:
        raise ZeroDivisionError

    engine.add_request("a", {"prompt_token_ids": [70, 80]}, greedy(3))
    engine.step()
    engine.worker.before_step = fail  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.worker.before_step = None  # type: ignore[attr-defined]
    run(engine)
    engine.close()
    assert kinds_of(path)[2:] == ["plan", "update", "plan", "plan", "update", "plan", "update"]
    assert replay(str(path)).num_differences == 0


def test_deadlines_are_counted_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path))
    begin = engine.scheduler.recording.start  # type: ignore[attr-defined]
    params = _core.SamplingParams(temperature=0, top_p=1, top_k=0, min_p=0, seed=0, num_logprobs=None)
    engine.scheduler.add(5, [70], params, 9, [], deadline_ns=begin + 10**15, queue_deadline_ns=begin + 10**16)
    engine.scheduler.schedule(begin + 10)
    engine.close()
    (added,) = [event for event in events_of(path) if event["e"] == "add"]
    assert (added["deadline_ns"], added["queue_deadline_ns"]) == (10**15, 10**16)
    assert replay(str(path)).num_differences == 0


def test_what_nobody_can_find_any_more_is_forgotten_and_the_replay_is_none_the_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_MIN_TOKENS_TO_SWEEP", 20)
    path = tmp_path / "run"
    engine = toy_engine(record=str(path), num_blocks=16, num_host_blocks=8)
    scheduler = engine.scheduler
    assert isinstance(scheduler, RecordingScheduler)
    capacity = 0
    for i in range(60):
        text = i // 2  # everything comes twice
        prompt = [70 + text % 7, 80 + text % 3, *range(60 + text % 5, 72)]
        engine.add_request(str(i), {"prompt_token_ids": prompt}, greedy(1 + i % 9))
        if i % 3 == 2:
            run(engine)
            capacity = max(capacity, scheduler._paths.num_tokens)
    run(engine)
    engine.close()
    assert capacity <= 4 * 16 * 4
    result = replay(str(path))
    assert result.num_differences == 0
    assert result.stats["num_prefix_tokens_found"] > 0
    assert result.stats["num_cached_blocks_evicted"] > 0


def test_what_is_pinned_is_not_forgotten_before_it_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MIN_TOKENS_TO_SWEEP", 20)
    path = tmp_path / "run"
    engine = toy_engine(record=str(path), num_blocks=16, num_host_blocks=0, pinned_prefix_budget=0.5)
    system = list(range(60, 72))
    assert engine.scheduler.pin(1, system) == 0
    for i in range(40):
        prompt = [*system, 100, 101] if i % 13 == 12 else [70 + i, *range(90, 100)]
        engine.add_request(str(i), {"prompt_token_ids": prompt}, greedy(6))
        run(engine)
    engine.close()
    result = replay(str(path))
    assert result.differences == ()
    assert result.stats["num_prefix_tokens_found"] >= 2 * len(system)
    assert result.stats["num_cached_blocks_evicted"] > 0


def test_a_salt_s_number_says_nothing_outside_its_recording(tmp_path: Path) -> None:
    roots = []
    for name in ("one", "other"):
        engine = toy_engine(record=str(tmp_path / name))
        for i, salt in enumerate(("mine", "mine", "yours")):
            engine.add_request(str(i), {"prompt_token_ids": [70, 80], "cache_salt": salt}, greedy(2))
        run(engine)
        engine.close()
        roots.append([event["root"] for event in events_of(tmp_path / name) if event["e"] == "add"])
    for mine, again, yours in roots:
        assert mine == again != yours
    assert not set(roots[0]) & set(roots[1])


def test_of_a_request_that_a_stop_string_ended_nothing_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path))
    text = engine_answer()
    stopping = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=[text[3]])
    samples = SamplingParams(n=3, seed=5, max_tokens=20, ignore_eos=True, stop=[chr(code) for code in range(65, 80)])
    engine.add_request("stopped", {"prompt_token_ids": [70, 80]}, stopping)
    engine.add_request("samples", {"prompt_token_ids": [75, 80]}, samples)
    run(engine)
    engine.close()
    assert kinds_of(path).count("finish") >= 2
    assert replay(str(path)).num_differences == 0


def engine_answer() -> str:
    """What the toy says to [70, 80]."""
    engine = toy_engine()
    engine.add_request("a", {"prompt_token_ids": [70, 80]}, greedy(8))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs[-1].outputs[0].text


def test_candidates_of_one_beam_that_are_as_likely_stay_in_their_order() -> None:
    beams = [(0, 1.5, 9, 0), (0, 1.5, 7, 4), (0, 1.5, 8, STOP), (0, 2.5, 3, 0), (1, 1.5, 1, 0)]
    recorded = recorder._in_order(beams)
    assert [(row, code) for row, code, _ in recorded] == [(0, 4), (0, STOP), (0, 0), (0, 0), (1, 0)]
    assert [logprob for _, _, logprob in recorded][::4] == [-1.5, -1.5]
    replayed = sorted(recorded, key=lambda beam: (beam[0], -beam[2], 2**31 - 1 if beam[1] == STOP else beam[1]))
    assert replayed == recorded


def test_after_a_broken_invariant_the_recording_ends_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    engine = toy_engine(record=str(path))
    for name in "ab":
        engine.add_request(name, {"prompt_token_ids": [70, 80, ord(name)]}, greedy(9))
    engine.step()
    engine.scheduler._give_back_too_early(0)
    with caplog.at_level(logging.WARNING, "fastpaged.engine.recording_file"):
        while engine.has_unfinished_requests():
            engine.step()
    engine.close()
    assert kinds_of(path)[-1] == "quarantine"
    assert f"recording to {path} has ended: an invariant broke" in caplog.text
    assert replay(str(path)).num_steps > 0


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="record must be a file that can be written, got '.*no/run'"):
        toy_engine(record=str(tmp_path / "no" / "run"))


@pytest.mark.parametrize("value", ["", 3, False])
def test_a_name_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="record must be None or a non-empty string"):
        EngineConfig(model="m", record=value)


def test_on_a_full_disk_recording_ends_with_one_warning_and_serving_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with caplog.at_level(logging.WARNING):
        engine = toy_engine(record="/dev/full")
        for name in "abc":
            engine.add_request(name, {"prompt_token_ids": [70, 80]}, greedy(5))
        run(engine)
        engine.abort_request("a")
        engine.close()
    assert [record.getMessage() for record in caplog.records] == [
        "recording to /dev/full has ended: No space left on device"
    ]
