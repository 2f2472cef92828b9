"""`fastpaged top`: what a recording engine's KV memory holds, on a terminal and elsewhere."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine.fakes import toy_engine

from fastpaged import SamplingParams
from fastpaged.cli import kv_map, screen
from fastpaged.cli.main import main
from fastpaged.cli.screen import Screen, Style
from fastpaged.cli.top import RateMeter, Top
from fastpaged.cli.top_frame import Rates, View, frame
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.simulator.follower import Follower

PLAIN = Style(colors=False, unicode=False)
COLORED = Style(colors=True, unicode=True)
RATES = Rates(345.0, 0.25, 7, 0.5)


class Terminal(io.StringIO):
    """Keeps what was written; says that it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def busy_engine(path: Path | None = None) -> LLMEngine:
    """More requests than fit; samples, shared beginnings."""
    engine = toy_engine(
        num_blocks=40,
        num_host_blocks=8,
        preemption_mode="swap",
        max_num_batched_tokens=40,
        record=None if path is None else str(path),
    )
    for i in range(9):
        params = SamplingParams(temperature=1.0, seed=i, max_tokens=20, ignore_eos=True, n=1 + i % 3)
        engine.add_request(f"{i}", {"prompt_token_ids": [5] * 9 + [10 + i] * (1 + i)}, params)
    return engine


def recording(path: Path, num_steps: int = 30) -> LLMEngine:
    engine = busy_engine(path)
    for _ in range(num_steps):
        engine.step()
    return engine


def view_of(engine: LLMEngine, **others: Any) -> View:
    return View(title="toy", about="live", seconds=12.3, snapshot=engine.scheduler.snapshot(), rates=RATES, **others)


def without_colors(line: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", line)


# ---- drawing


@pytest.mark.parametrize("amounts", [(7, 0, 5, 3, 1), (1, 1, 1), (0, 9), (1000, 1, 1)])
def test_cells_of_a_bar_are_shared_out_to_the_last_one(amounts: tuple[int, ...]) -> None:
    for num_cells in range(40):
        cells = kv_map.shared_out(amounts, num_cells)
        assert sum(cells) == num_cells
        for amount, count in zip(amounts, cells, strict=True):
            assert abs(count - amount * num_cells / sum(amounts)) < 1


def test_a_bar_shows_every_part_of_the_pool() -> None:
    split: Any = SimpleNamespace(
        token_states=40, reserved=10, internal_waste=10, free=40, cached_free=30, quarantined=0
    )
    assert kv_map.pool_bar(split, 20, PLAIN) == "########rrxx::::::.."
    assert without_colors(kv_map.pool_bar(split, 20, COLORED)) == "████████▒▒xx░░░░░░··"


def test_a_map_has_a_sign_for_each_block() -> None:
    tier: Any = SimpleNamespace(
        num_holders=np.array([0, 0, 1, 1, 2, 1, 2]),
        num_tokens=np.array([0, 4, 3, 4, 4, 4, 4]),
        cached=np.array([False, True, False, True, True, True, True]),
        pinned=np.array([False] * 5 + [True] * 2),
        quarantined=np.array([False] * 7),
    )
    drawn = kv_map.block_map(kv_map.block_kinds(tier, 4), 5, 2, PLAIN)
    assert (drawn.lines, drawn.blocks_per_cell) == ((".:+#S", "PP"), 1)
    assert [kind.plain_sign for kind in kv_map.BLOCK_KINDS] == list(".:+#SP!")


def test_a_cell_of_several_blocks_shows_the_commonest() -> None:
    kinds = np.array([0, 0, 3, 3, 3, 1, 4, 4])
    assert kv_map.commonest(kinds, 3) == [0, 3, 4]
    assert kv_map.commonest(np.array([0, 3, 5, 2]), 2) == [3, 5]
    for num_blocks in range(1, 60):
        drawn = kv_map.block_map(np.zeros(num_blocks, int), 5, 3, PLAIN)
        assert sum(map(len, drawn.lines)) == -(-num_blocks // drawn.blocks_per_cell)
        assert len(drawn.lines) <= 3
    assert kv_map.block_map(np.zeros(0, int), 5, 3, PLAIN).lines == ()


@pytest.mark.parametrize("num_steps", [0, 1, 8, 30])
@pytest.mark.parametrize("size", [(80, 24), (120, 50), (40, 12), (200, 10)])
def test_a_frame_fits_its_screen(size: tuple[int, int], num_steps: int) -> None:
    engine = busy_engine()
    for _ in range(num_steps):
        engine.step()
    for style in (PLAIN, COLORED):
        lines = frame(view_of(engine), *size, style)
        assert len(lines) <= size[1]
        assert max(len(without_colors(line)) for line in lines) <= size[0]


def test_a_frame_says_what_the_snapshot_says() -> None:
    engine = busy_engine()
    for _ in range(12):
        engine.step()
    snapshot = engine.kv_snapshot()
    lines = frame(view_of(engine), 80, 24, PLAIN)
    split = snapshot.device.split
    assert lines[0].startswith("fastpaged top  toy") and lines[0].endswith("345 tok/s  hits 50%  step 12  12.3 s  live")
    assert lines[1] == (
        f"tokens {split.token_states / 1.6:.1f}%  reserved 0.0%  waste {split.internal_waste / 1.6:.1f}%  "
        f"free {split.free / 1.6:.1f}% (cached {split.cached_free / 1.6:.1f}%)  saved {split.saved / 1.6:.1f}%"
    )
    assert lines[2].startswith("device 40 x 4 [")
    assert lines[4].startswith("host 8 x 4 [")
    states = [request.state for request in snapshot.requests]
    assert lines[5].startswith(
        f"running {states.count('running')}  swapped {states.count('swapped')}  waiting {states.count('waiting')}"
    )
    assert f"preempted 7 (0.2/s)  used: {100 * split.token_state_share:.1f}% tokens" in lines[5]
    first = next(line for line in lines if line.startswith("#0"))
    bill = snapshot.requests[0].bill
    expected = [snapshot.requests[0].num_sequences, 10, snapshot.requests[0].num_output_tokens]
    expected += [bill.held, bill.shared, bill.charged, bill.saved, snapshot.requests[0].num_preemptions]
    assert first.split()[2:] == [str(figure) for figure in expected]


def test_who_does_not_fit_is_counted() -> None:
    engine = busy_engine()
    engine.step()
    lines = frame(view_of(engine), 80, 16, PLAIN)
    shown = sum(line.startswith("#") and line[1].isdigit() for line in lines)
    assert 0 < shown < 9
    assert lines[-1] == f"and {9 - shown} more"


def test_trouble_is_said() -> None:
    lines = frame(view_of(busy_engine(), trouble="the replay differs"), 80, 24, PLAIN)
    assert lines[1] == "the replay differs"


def test_a_painted_line_is_cut_by_its_columns() -> None:
    painted = COLORED.paint("abc", "red") + "def"
    assert screen.cut(painted, 4) == COLORED.paint("abc", "red") + "d"
    assert screen.cut(painted, 2) == COLORED.paint("ab", "red")
    assert screen.cut("abcdef", 3) == "abc"


# ---- screens


def test_a_terminal_gets_its_old_screen_back() -> None:
    terminal = Terminal()

    def interrupted() -> None:
        with Screen(terminal) as shown:
            shown.show(["one", "two"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = terminal.getvalue()
    assert text.startswith("\x1b[?1049h\x1b[?25l\x1b[Hone\x1b[K\ntwo\x1b[K\x1b[J")
    assert text.endswith("\x1b[?25h\x1b[?1049l")


def test_elsewhere_frames_follow_one_another_as_plain_text() -> None:
    stream = io.StringIO()
    with Screen(stream) as shown:
        assert shown.size() == (80, 24)
        assert not shown.style.colors
        shown.show(["one"])
        shown.show(["two"])
    assert stream.getvalue() == "one\n\ntwo\n"


def test_colors_are_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.of(Terminal()) == COLORED
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style.of(Terminal()) == Style(colors=False, unicode=True)
    ascii_only = Terminal()
    ascii_only.encoding = "ascii"  # type: ignore[misc,assignment]
    assert not Style.of(ascii_only).unicode


# ---- following a recording


def test_once_prints_the_state_of_the_engine_that_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    engine = recording(path)
    assert main(["top", str(path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    split = engine.kv_snapshot().device.split
    assert len(lines) <= 24
    assert "step 30 " in lines[0]
    assert f"tokens {split.token_states / 1.6:.1f}%" in lines[1]
    assert any(line.startswith("#") for line in lines)


def test_what_is_no_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(tmp_path / "none"), "--once"]) == 2
    (tmp_path / "text").write_text("hello\n")
    assert main(["top", str(tmp_path / "text"), "--once"]) == 2
    (tmp_path / "empty").write_text("")
    assert main(["top", str(tmp_path / "empty"), "--once"]) == 1
    assert "has no step yet" in capsys.readouterr().err


def test_a_growing_recording_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    engine = recording(path, 1)
    clock = itertools.count()
    terminal = Terminal()
    num_sleeps = 0

    def sleep(_: float) -> None:
        nonlocal num_sleeps
        num_sleeps += 1
        if num_sleeps == 15:
            raise KeyboardInterrupt
        engine.step()

    with Follower(str(path)) as follower:
        top = Top(follower, Screen(terminal), clock=lambda: float(next(clock)), sleep=sleep)
        with pytest.raises(KeyboardInterrupt):
            top.run()
    steps = [int(step) for step in re.findall(r"step (\d+)", terminal.getvalue())]
    assert steps == sorted(steps)
    assert {*steps} == {*range(1, 16)}
    assert top.view is not None
    assert top.view.snapshot.device.split.token_states == engine.kv_snapshot().device.split.token_states


def test_frames_that_come_too_fast_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recording(path)
    stream = io.StringIO()
    with Follower(str(path)) as follower:
        Top(follower, Screen(stream), speed=1e6, interval=10.0, clock=lambda: 5.0, sleep=lambda _: None).run()
    steps = [int(step) for step in re.findall(r"step (\d+)", stream.getvalue())]
    assert steps == [1, 30]  # the first, and the end


def test_a_recording_is_played_at_a_speed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recording(path)
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    times = []
    with Follower(str(path)) as follower:
        times = [step.time for step in follower.steps(lambda: False)]
    with Follower(str(path)) as follower:
        Top(follower, Screen(io.StringIO()), speed=0.5, clock=lambda: now, sleep=sleep).run()
    assert now - 100.0 == pytest.approx((times[-1] - times[0]) / 1e9 / 0.5)


def test_rates_are_of_the_last_seconds() -> None:
    meter = RateMeter()
    for second in range(10):
        plan = SimpleNamespace(num_samples=second, preempted=[1] if second == 9 else [])
        stats = SimpleNamespace(num_preemptions=4, num_prefix_tokens_looked_up=8, num_prefix_tokens_found=2)
        step: Any = SimpleNamespace(time=int(second * 1e9), plan=plan, scheduler=SimpleNamespace(stats=stats))
        meter.add(step)
        if second == 0:
            assert meter.rates() == Rates(0.0, 0.0, 4, 0.25)
    assert meter.rates() == Rates((8 + 9) / 2, 0.5, 4, 0.25)
