"""`fastpaged replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulator.recorded import drive, pressed_engine

from fastpaged.cli.main import main
from fastpaged.simulator.header import MAX_BLOCK_SIZE, MAX_BLOCKS


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "run"
    engine = pressed_engine(path)
    drive(engine, 4, num_requests=20)
    engine.close()
    return path


def test_a_recording_that_agrees_is_said_to_and_exits_with_0(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recording)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("toy, fastpaged ")
    assert said.endswith(" decisions, 0 of them different\n")


def test_one_that_does_not_shows_where_and_exits_with_1(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other"
    path.write_text(recording.read_text().replace('"let_in":[0', '"let_in":[77', 1))
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr().out
    assert " 1 of them different\nstep 1 (line " in said
    assert "let_in: recorded [77" in said
    assert main(["replay", str(path), "--blocks", "12", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["num_differences"] == 1


def test_other_settings_are_shown_beside_what_was(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recording), "--blocks", "12", "--preemption-mode", "swap"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["recorded", "predicted"]
    assert lines[1].split() == ["requests", "20", "20"]
    assert [line.split("  ")[0] for line in lines if line.startswith("TTFT")] == ["TTFT p50", "TTFT p90", "TTFT p99"]
    assert lines[-1].startswith("a step's time, in us: ")


def test_json_has_both_and_the_fit(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recording), "--block-size", "2", "--policy", "paper", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["changes"] == {"block_size": 2, "policy": "paper"}
    assert figures["recorded"]["num_requests"] == figures["predicted"]["num_requests"] == 20
    assert figures["recorded"]["num_output_tokens"] > 0
    assert len(figures["step_times"]["seconds"]) == 6


def test_a_file_that_is_none_or_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text"
    path.write_text("hello\n")
    assert main(["replay", str(path)]) == 2
    assert main(["replay", str(tmp_path / "no")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "line 1: expected an event of a recording" in first
    assert "No such file" in second


@pytest.mark.parametrize(
    ("option", "given", "allowed"),
    [
        ("--blocks", "0", f"from 1 to {MAX_BLOCKS}"),
        ("--blocks", "-1", f"from 1 to {MAX_BLOCKS}"),
        ("--host-blocks", "-1", f"from 0 to {MAX_BLOCKS}"),
        ("--host-blocks", "2147483647", f"from 0 to {MAX_BLOCKS}"),
        ("--block-size", "0", f"from 1 to {MAX_BLOCK_SIZE}"),
        ("--block-size", "257", f"from 1 to {MAX_BLOCK_SIZE}"),
        ("--block-size", "1.5", f"from 1 to {MAX_BLOCK_SIZE}"),
    ],
)
def test_an_option_out_of_range_is_named_as_it_was_given(
    recording: Path, capsys: pytest.CaptureFixture[str], option: str, given: str, allowed: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["replay", str(recording), f"{option}={given}"])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"argument {option}: must be a whole number {allowed}, got '{given}'" in line


def test_a_pin_that_is_left_out_of_a_prediction_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = pressed_engine(tmp_path / "run")
    engine.scheduler.pin(1, [70, 71, 72, 73, 74])
    drive(engine, 4, num_requests=3)
    engine.close()
    assert main(["replay", str(tmp_path / "run"), "--block-size", "8"]) == 0
    assert "or more than may be pinned: 1\n" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "run"), "--block-size", "2"]) == 0
    assert "left out" not in capsys.readouterr().out
