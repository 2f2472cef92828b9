"""PreemptionLog: preemptions as an operator sees them: in the log, and in total."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged import _core
    from fastpaged.engine.preemptions import Preemptions

_SECONDS_BETWEEN_LINES = 1.0
_NAMED = 4  # requests in one line


@dataclass(frozen=True)
class PreemptionTotals:
    """What preemptions have cost since the engine was made. Bytes: of swapped requests' KV blocks."""

    num_preemptions: int
    num_tokens_recomputed: int
    num_bytes_swapped_out: int
    num_bytes_swapped_in: int

    def __str__(self) -> str:
        num_bytes = self.num_bytes_swapped_out + self.num_bytes_swapped_in
        return (
            f"{self.num_preemptions} preemptions, {self.num_tokens_recomputed} tokens recomputed, "
            f"{num_bytes / 1e6:.1f} MB swapped"
        )


class PreemptionLog:
    """At most a line a second, level INFO: who was preempted in a step, by which means, and what all has cost so far.
    The first line says what the choice of the means goes by."""

    def __init__(self) -> None:
        self._last_line: int | None = None
        self._num_unsaid = 0

    def note(
        self,
        plan: _core.SchedulerOutput,
        now: int,
        described: Callable[[int], tuple[str, int] | None],
        preemptions: Preemptions,
    ) -> None:
        """REQUIRES: the plan preempts somebody. now: nanoseconds. described: request id and number of known tokens, by
        group id; None of who is gone."""
        self._num_unsaid += len(plan.preempted)
        is_first = self._last_line is None
        if self._last_line is not None and now < self._last_line + _SECONDS_BETWEEN_LINES * 1e9:
            return
        self._last_line = now
        swapped = set(plan.swapped_out)
        known = [(group_id, described(group_id)) for group_id in plan.preempted]
        names = [
            f"{found[0]!r} ({'swapped' if group_id in swapped else 'to be recomputed'}, {found[1]} tokens)"
            for group_id, found in known
            if found is not None
        ]
        others = self._num_unsaid - len(names[:_NAMED])
        self._num_unsaid = 0
        logging.getLogger(__name__).info(
            "KV blocks ran out: preempted %s%s; so far %s%s",
            ", ".join(names[:_NAMED]),
            f" and {others} more" if others else "",
            preemptions.totals,
            f"; costs: {preemptions.costs}" if is_first else "",
        )
