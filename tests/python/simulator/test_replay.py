"""A recording replayed decides the same; one that was tampered with does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulator.recorded import FakeClock, drive, pressed_engine, steps_of

from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams
from fastpaged.simulator.replay import ReplayResult, replay


def recorded_run(path: Path, seed: int, **changes: Any) -> None:
    engine = pressed_engine(path, **changes)
    engine.clock.source = FakeClock()
    drive(engine, seed)
    engine.close()


def checked(path: Path) -> ReplayResult:
    result = replay(str(path))
    assert result.differences == ()
    assert result.num_differences == 0
    assert not result.is_cut
    return result


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_a_run_under_pressure_replays_without_a_difference(tmp_path: Path, seed: int, mode: str) -> None:
    policy = "priority" if seed % 3 == 2 else "fcfs"
    recorded_run(tmp_path / "run", seed, preemption_mode=mode, async_scheduling=seed % 2 == 1, scheduling_policy=policy)
    result = checked(tmp_path / "run")
    assert result.stats["num_preemptions"] > 0
    assert result.stats["num_prefix_tokens_found"] > 0
    assert result.num_decisions > 7 * result.num_steps


def test_those_runs_meet_what_they_are_to_meet(tmp_path: Path) -> None:
    """Of all of them together: ends of every kind, copies of every kind, both ways to preempt."""
    seen: set[str] = set()
    for seed in range(6):
        recorded_run(tmp_path / "run", seed, preemption_mode=("swap", "recompute")[seed % 2])
        for event in map(json.loads, (tmp_path / "run").read_text().splitlines()):
            seen.add(event["e"])
            seen.update(reason for _, _, reason in event.get("ends", ()))
            seen.update(kind for kind, _, _, _ in event.get("copies", ()))
            seen.update(event.keys() & {"out", "in", "preempted", "beams", "bad", "scored", "root", "num_samples"})
    assert seen >= {
        "abort", "finish", "stop", "length", "error", "deadline", "queue_timeout", "swap_out", "swap_in",
        "copy_on_write", "out", "in", "preempted", "beams", "bad", "scored", "root", "num_samples",
    }  # fmt: skip


def test_another_decision_is_told_with_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recorded_run(path, 1)
    lines = path.read_text().splitlines()
    place, event = next(
        (i, event) for i, event in enumerate(map(json.loads, lines)) if event["e"] == "plan" and "let_in" in event
    )
    event["let_in"] = [99]
    path.write_text("\n".join([*lines[:place], json.dumps(event), *lines[place + 1 :]]) + "\n")
    result = replay(str(path))
    assert result.num_differences == 1
    (difference,) = result.differences
    assert (difference.line, difference.step, difference.what, difference.recorded) == (place + 1, 1, "let_in", [99])
    assert difference.replayed != [99]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("recording") / "run"
    recorded_run(path, 0, preemption_mode="swap")
    return path.read_text().splitlines()


@pytest.mark.parametrize("what", ["s", "copies", "preempted", "out", "in", "let_in", "cached", "ends"])
def test_each_kind_of_decision_is_compared(tmp_path: Path, lines: list[str], what: str) -> None:
    kind = "update" if what == "ends" else "plan"
    place, event = next(
        (i, made) for i, made in enumerate(map(json.loads, lines)) if made["e"] == kind and what in made
    )
    recorded = event.pop(what)
    path = tmp_path / "run"
    path.write_text("\n".join([*lines[:place], json.dumps(event), *lines[place + 1 :]]) + "\n")
    result = replay(str(path))
    assert [(found.line, found.what, found.recorded) for found in result.differences] == [(place + 1, what, None)]
    assert result.differences[0].replayed == recorded


def test_another_pool_decides_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recorded_run(path, 1)
    header, rest = path.read_text().split("\n", 1)
    path.write_text(header.replace('"num_blocks":16', '"num_blocks":15') + "\n" + rest)
    assert replay(str(path)).num_differences > 0


def test_neither_text_nor_tokens_nor_salts_are_in_the_file(tmp_path: Path) -> None:
    engine = pressed_engine(tmp_path / "run", num_blocks=64)
    secret = [101, 102, 103, 104, 105, 106, 107, 108]
    prompt = {"prompt_token_ids": secret, "cache_salt": "whose"}
    with_tokens = SamplingParams(temperature=0, max_tokens=9, stop_token_ids=[120], logit_bias={117: 5.0})
    engine.add_request("named", prompt, with_tokens)
    answers = [output for output in steps_of(engine) if output.finished]
    engine.close()
    text = (tmp_path / "run").read_text()
    numbers = {int(number) for number in re.findall(r"(?<![.\d])\d+(?![.\d])", re.sub(r'"t":\d+', "", text))}
    assert not numbers & {*secret, *answers[0].outputs[0].token_ids, 117, 120}
    assert "whose" not in text and "named" not in text
    checked(tmp_path / "run")


def test_a_recording_cut_in_the_middle_of_a_line_replays_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recorded_run(path, 2)
    whole = path.read_text()
    path.write_text(whole[: len(whole) * 2 // 3])
    result = replay(str(path))
    assert result.num_differences == 0
    assert result.is_cut == (not path.read_text().endswith("\n"))
    assert result.num_steps > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: expected an event of a recording"),
        ("hello\n", "line 1: expected an event of a recording, got 'hello"),
        ('{"e":"recording","t":0,"format":99}\n', "a recording must be of format 1, got 99"),
        ('{"e":"recording","t":0,"format":1}\n', "the header of a recording has version"),
    ],
)
def test_what_is_no_recording_is_refused_by_name_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "none"
    path.write_text(text)
    with pytest.raises(InvalidRequestError) as caught:
        replay(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
