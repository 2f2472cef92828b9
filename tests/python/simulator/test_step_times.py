"""The fit of steps' times."""

from __future__ import annotations

import random

import pytest

from fastpaged.errors import InvalidRequestError
from fastpaged.simulator.step_times import StepTimes, parts_of


def random_parts(dice: random.Random) -> list[float]:
    rows = [(0, 0, dice.randrange(300), dice.choice((1, 1, 1, dice.randint(2, 99)))) for _ in range(dice.randint(1, 9))]
    copies = [("swap_out", 0, 0, dice.randint(1, 5)) for _ in range(dice.randrange(3))]
    return parts_of(rows, copies)


def test_what_a_step_does_is_counted_by_hand() -> None:
    rows = [(1, 1, 7, 1), (2, 2, 0, 4), (3, 3, 2, 2)]
    copies = [("swap_in", 0, 0, 3), ("copy_on_write", 4, 5, 1)]
    pairs = (1 + 2 + 3 + 4) + (3 + 4)
    assert parts_of(rows, copies) == [1.0, 6.0, pairs / 1000, 1.0, 0.008, 4.0]
    assert parts_of(rows, copies, 0.5)[-1] == 2.0


def test_times_that_are_what_the_fit_thinks_are_found() -> None:
    dice = random.Random(1)
    seconds = (3e-3, 2e-4, 1e-5, 4e-4, 5e-5, 1e-4)
    parts = [random_parts(dice) for _ in range(200)]
    durations = [sum(s * p for s, p in zip(seconds, of, strict=True)) for of in parts]
    times = StepTimes.fit(parts, durations)
    assert times.seconds == pytest.approx(seconds, rel=1e-3, abs=1e-9)
    assert times.residual < 1e-4
    assert times.nanoseconds(parts[0]) == pytest.approx(1e9 * durations[0], rel=1e-4)


def test_no_part_takes_less_than_nothing_and_a_step_takes_at_least_a_nanosecond() -> None:
    dice = random.Random(2)
    parts = [random_parts(dice) for _ in range(100)]
    times = StepTimes.fit(parts, [max(0.0, 1e-3 - 1e-5 * of[1]) for of in parts])
    assert min(times.seconds) >= 0.0
    assert StepTimes((0.0,) * 6, 1, 0.0, 0.0, 0.0).nanoseconds(parts[0]) == 1


def test_a_step_that_somebody_held_up_spoils_nothing() -> None:
    dice = random.Random(3)
    parts = [random_parts(dice) for _ in range(200)]
    durations = [1e-3 + 1e-4 * of[1] + 1e-6 * dice.random() for of in parts]
    durations[17] += 5.0
    assert StepTimes.fit(parts, durations).seconds[1] == pytest.approx(1e-4, rel=0.01)


def test_without_a_step_there_is_no_fit() -> None:
    with pytest.raises(InvalidRequestError, match="must have steps"):
        StepTimes.fit([], [])
