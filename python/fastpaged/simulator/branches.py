"""Branches: which of its request's samples a sequence is, and which results of a step are whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastpaged import _core


@dataclass(frozen=True)
class Draws:
    """Of one sequence in a step: its results are the rows [first_row, first_row + num_scores + num_draws). branch: of
    the first draw; several are samples that part here, from 0 on. A beam's is its rank."""

    group_id: int
    sequence_id: int
    branch: int
    first_row: int
    num_scores: int
    num_draws: int

    @property
    def rows(self) -> range:
        """Of the draws."""
        return range(self.first_row + self.num_scores, self.first_row + self.num_scores + self.num_draws)


class Branches:
    """Of the unfinished requests of one scheduler."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, int]] = {}
        self._searches: set[int] = set()

    def add(self, group_id: int, *, is_search: bool) -> None:
        """A request. is_search: it has beams."""
        self._of[group_id] = {}
        if is_search:
            self._searches.add(group_id)

    def is_search(self, group_id: int) -> bool:
        """Whether it has beams."""
        return group_id in self._searches

    def branch(self, group_id: int, sequence_id: int) -> int:
        """0 as long as its samples have not parted."""
        return self._of.get(group_id, {}).get(sequence_id, 0)

    def note(self, events: Iterable[_core.SequenceEvent]) -> None:
        """What came of a step."""
        for event in events:
            known = self._of.get(event.group_id)
            if known is None:
                continue
            if event.kind.name == "SAMPLE":
                known[event.sequence_id] = event.branch
            if event.group_finished:
                self.forget(event.group_id)

    def unfinished(self) -> list[int]:
        """The requests that are here, in order of arrival."""
        return list(self._of)

    def forget(self, group_id: int) -> None:
        """It is gone."""
        self._of.pop(group_id, None)
        self._searches.discard(group_id)

    def draws(self, plan: _core.SchedulerOutput) -> list[Draws]:
        """Of each sequence with results, in order."""
        found = []
        ranks: dict[int, int] = {}
        row = 0
        for (group, _, _), sequence, (scores, draws) in zip(
            plan.scheduled, plan.scheduled_sequences, plan.result_counts, strict=True
        ):
            if scores + draws > 0:
                branch = ranks.get(group, 0) if group in self._searches else self.branch(group, sequence)
                ranks[group] = branch + 1
                found.append(Draws(group, sequence, branch, row, scores, draws))
            row += scores + draws
        return found
