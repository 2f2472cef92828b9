"""What a plan decides and what came of it, as a recording has it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from fastpaged import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

EVENT = struct.Struct("<QQqqqqqqqQqd")  # a row of StepEvents.packed
Row = tuple[int, int, int, int]  # of a plan: group, sequence, first token, number of tokens


def plan_rows(plan: _core.SchedulerOutput) -> list[Row]:
    """(group, sequence, first token, number of tokens) of all that a plan computes."""
    return [
        (group, sequence, first, num)
        for (group, first, num), sequence in zip(plan.scheduled, plan.scheduled_sequences, strict=True)
    ]


def decisions_of(plan: _core.SchedulerOutput) -> dict[str, Any]:
    """What else was decided, by the names of a recording; without what is empty."""
    lists = {
        "copies": plan.copies,
        "preempted": plan.preempted,
        "out": plan.swapped_out,
        "in": plan.swapped_in,
        "let_in": plan.let_in,
        "cached": plan.cached,
    }
    return {name: made for name, made in lists.items() if made}


def ends_of(events: _core.StepEvents) -> list[list[object]]:
    """[group, sequence, reason] of those that ended, in order."""
    reasons = list(_core.FinishReason.__members__)
    rows = EVENT.iter_unpack(events.packed)
    return [[row[0], row[1], reasons[row[6]].lower()] for row in rows if row[6] >= 0]


def changed_rows(before: Sequence[Row], rows: Sequence[Row]) -> list[object] | None:
    """How the rows of a plan differ from those of the one before, gone on by a token each; None: they do not."""
    expected = gone_on(before)
    if list(rows) == expected:
        return None
    most = min(len(rows), len(expected))
    first = next((i for i in range(most) if rows[i] != expected[i]), most)
    last = next((i for i in range(most - first) if rows[-1 - i] != expected[-1 - i]), most - first)
    return [first, last, rows[first : len(rows) - last]]


def gone_on(rows: Sequence[Row]) -> list[Row]:
    """The same sequences, each with the token after these."""
    return [(group, sequence, first + num, 1) for group, sequence, first, num in rows]
