"""A recording followed while it is written."""

from __future__ import annotations

from pathlib import Path

from simulator.recorded import drive, pressed_engine

from fastpaged.sampling_params import SamplingParams
from fastpaged.simulator.follower import Follower


def test_each_step_is_there_once_it_is_over_with_the_scheduler_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = pressed_engine(path)
    with Follower(str(path)) as follower:
        assert list(follower.steps(lambda: False)) == []
        assert follower.header is not None
        assert follower.header.scheduler["num_blocks"] == engine.scheduler.num_blocks
        for name in "abc":
            engine.add_request(name, {"prompt_token_ids": [70, 80, 90]}, SamplingParams(temperature=0, max_tokens=9))
        number = 0
        while engine.has_unfinished_requests():
            engine.step()
            number += 1
            (step,) = follower.steps(lambda: False)
            assert (step.number, step.is_last, step.differences) == (number, True, ())
            assert step.duration >= 0
            assert step.scheduler.num_running == engine.scheduler.num_running
            assert step.scheduler.num_free_blocks == engine.scheduler.num_free_blocks
            assert step.scheduler.cached_free_blocks().tolist() == engine.scheduler.cached_free_blocks().tolist()
            step.scheduler.check_invariants()
        assert number > 3
    engine.close()


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    engine = pressed_engine(whole)
    drive(engine, 5, num_requests=4)
    engine.close()
    text = whole.read_text()
    path = tmp_path / "growing"
    path.write_text("")
    numbers = []
    with Follower(str(path)) as follower, path.open("a") as file:
        for begin in range(0, len(text), 97):
            file.write(text[begin : begin + 97])
            file.flush()
            numbers += [step.number for step in follower.steps(lambda: False)]
    assert numbers == list(range(1, text.count('"e":"update"') + 1))


def test_whoever_waits_is_asked_when_there_is_no_more_for_now(tmp_path: Path) -> None:
    path = tmp_path / "run"
    engine = pressed_engine(path)
    engine.add_request("a", {"prompt_token_ids": [70]}, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))

    def wait() -> bool:
        if engine.has_unfinished_requests():
            engine.step()
            return True
        return False

    with Follower(str(path)) as follower:
        assert [step.number for step in follower.steps(wait)] == [1, 2, 3, 4, 5]
    engine.close()
