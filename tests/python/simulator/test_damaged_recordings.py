"""What is no recording, or a damaged one, is told by name and line before anything is made of its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulator.recorded import drive, pressed_engine

from fastpaged.cli.main import main
from fastpaged.errors import InvalidRequestError
from fastpaged.simulator.follower import Follower
from fastpaged.simulator.replay import replay


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("recording") / "run"
    engine = pressed_engine(path)
    drive(engine, 4, num_requests=20)
    engine.close()
    return path.read_text().splitlines()


def refusal(path: Path, lines: list[str]) -> str:
    """What both readers of a recording say, and nobody else."""
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidRequestError) as caught:
        replay(str(path))
    with Follower(str(path)) as follower, pytest.raises(InvalidRequestError) as seen:
        list(follower.steps(lambda: False))
    assert str(seen.value) == str(caught.value)
    return str(caught.value)


HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"scheduler": {"x": 1}}, "scheduler has what this version does not know: x"),
    ({"policy": {"kindness": 1}}, "policy has what this version does not know: kindness"),
    ({"costs": {"seconds": 1.0}}, "costs has what this version does not know: seconds"),
    (
        {"scheduler": {"num_blocks": 2**31 - 1}},
        "scheduler.num_blocks must be a whole number from 1 to 4194304, got 2147",
    ),
    ({"scheduler": {"num_host_blocks": 10**12}}, "scheduler.num_host_blocks must be a whole number from 0 to 4194304"),
    ({"scheduler": {"block_size": 0}}, "scheduler.block_size must be a whole number from 1 to 256, got 0"),
    ({"scheduler": {"max_model_len": 10**9}}, "scheduler.max_model_len must be a whole number from 2 to 16777216"),
    ({"scheduler": {"max_num_seqs": 10**9}}, "scheduler.max_num_seqs must be a whole number"),
    ({"scheduler": {"num_blocks": "many"}}, "scheduler.num_blocks must be a whole number"),
    ({"scheduler": {"prefix_caching": 3}}, "scheduler.prefix_caching must be true or false, got 3"),
    ({"policy": {"ageing_steps": 10**30}}, "policy.ageing_steps must be a whole number"),
    ({"policy": {"watermark": "high"}}, "policy.watermark must be a number, got 'high'"),
    ({"policy": {"watermark": 7.0}}, "watermark must be in [0, 1), got 7"),
    ({"policy": {"preemption_mode": "burn"}}, "burn"),
    ({"costs": {"seconds_per_token": float("nan")}}, "seconds_per_token must be"),
    ({"scheduler": 5}, "the header's scheduler must be an object, got 5"),
    ({"model": 5}, "the header's model must be a text, got 5"),
    ({"block_bytes": -1}, "block_bytes must be a whole number"),
    ({"block_bytes": 1.5}, "block_bytes must be a whole number"),
]


@pytest.mark.parametrize(("changes", "said"), HEADERS)
def test_a_header_that_this_version_cannot_follow_is_told_by_name(
    lines: list[str], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    header = json.loads(lines[0])
    for name, value in changes.items():
        header[name] = header[name] | value if isinstance(value, dict) else value
    assert said in refusal(tmp_path / "run", [json.dumps(header), *lines[1:]])


def test_a_header_without_a_pool_is_told_so(lines: list[str], tmp_path: Path) -> None:
    header = json.loads(lines[0])
    del header["scheduler"]["num_blocks"]
    assert "the header's scheduler has num_blocks" in refusal(tmp_path / "run", [json.dumps(header)])


EVENTS = [
    '{"e":"add","t":0,"id":900,"max":5,"p":[9999999,9999999,1000000000,0]}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,0,1000000000,0]}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,1000000000000,5,0]}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,-4,5,0]}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,9,-4,0]}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,0,5,1]}',  # this strand is there
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,0,5,4000000000]}',
    '{"e":"add","t":0,"id":900,"max":99999999999,"p":[0,0,5,0]}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,0,5,0],"num_samples":1000000000}',
    '{"e":"add","t":0,"id":900,"max":5,"p":[0,0,5,0],"colour":1}',
    '{"e":"add","t":0,"id":900,"max":5}',
    '{"e":"pin","t":0,"id":900,"p":[0,0,1000000000,0],"held":1}',
    '{"e":"update","t":0,"new":[[70000,70000,5]]}',  # its own parent
    '{"e":"update","t":0,"x":[[1000000,0]]}',
    '{"e":"update","t":0,"x":5}',
    '{"e":"nothing","t":0}',
    '{"e":[],"t":0}',
    '{"e":"plan","t":-1000000000000000}',
    '{"e":"plan","t":1.5}',
    '{"e":"plan","t":NaN}',
    '{"e":"plan","t":100000000000000000000}',
    "[" * 100_000,
    "5",
]


@pytest.mark.parametrize("event", EVENTS)
def test_a_damaged_line_is_told_by_its_number(lines: list[str], tmp_path: Path, event: str) -> None:
    place = next(i for i, line in enumerate(lines) if i > 20 and '"e":"update"' in line)
    said = refusal(tmp_path / "run", [*lines[:place], event, *lines[place:]])
    assert f"line {place + 1}" in said
    assert len(said) < 400


@pytest.mark.parametrize("command", [["replay"], ["replay", "--blocks", "9"], ["top", "--once"]])
def test_the_commands_say_it_in_one_line(
    lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    path = tmp_path / "run"
    path.write_text(lines[0].replace('"block_size":4', '"block_size":4,"x":1') + "\n")
    assert main([*command, str(path)]) == 2
    path.write_text("\n".join([*lines[:9], EVENTS[0]]) + "\n")
    assert main([*command, str(path)]) == 2
    header, event = capsys.readouterr().err.splitlines()
    assert header.endswith("line 1: the header's scheduler has what this version does not know: x")
    assert "line 10 of the recording cannot be replayed" in event
