"""Preemptions: what they cost, what they have cost, and what the log says of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastpaged import _core
from fastpaged.engine.preemption_costs import CostMeter, PreemptionCosts
from fastpaged.engine.preemption_log import PreemptionLog, PreemptionTotals

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.worker.worker import Worker


_MOST_AWAY = 0.1  # of a step's time; beyond that it is not known


class Preemptions:
    """Of one engine. Measures steps and copies, and has the scheduler of preemption_mode="auto" know what is dear."""

    def __init__(self, scheduler: _core.Scheduler, worker: Worker, clock: Callable[[], int], *, by_cost: bool) -> None:
        """clock: nanoseconds. by_cost: preemption_mode is "auto"."""
        self._scheduler = scheduler
        self._block_bytes = worker.block_bytes
        self._clock = clock
        tells = by_cost and worker.num_host_blocks > 0
        self._meter = (
            CostMeter(worker.seconds_per_block(), partial(_tell, scheduler))
            if tells
            else CostMeter((0.0, 0.0), _tell_nobody)
        )
        self._log = PreemptionLog()
        self._begun = self._left = self._away = 0

    @property
    def costs(self) -> PreemptionCosts:
        """As known by now: of copies as measured at the start, and of both as steps have taken since."""
        return self._meter.costs

    def fix_costs(self, costs: PreemptionCosts | None) -> None:
        """These from now on, whatever is measured; None: as measured."""
        self._meter.fix(costs)

    @property
    def totals(self) -> PreemptionTotals:
        """Of all requests together; see RequestMetrics for those of one."""
        stats = self._scheduler.stats
        return PreemptionTotals(
            stats.num_preemptions,
            stats.num_tokens_recomputed,
            stats.num_blocks_swapped_out * self._block_bytes,
            stats.num_blocks_swapped_in * self._block_bytes,
        )

    def note_plan(self, plan: _core.SchedulerOutput, described: Callable[[int], tuple[str, int] | None]) -> None:
        """A plan is about to be carried out. described: as PreemptionLog.note() takes it."""
        if plan.preempted:
            self._log.note(plan, self._clock(), described, self)
        self._begun = self._clock()
        self._away = 0

    def note_return(self) -> None:
        """The caller goes away while a step is computed."""
        self._left = self._clock()

    def note_call(self) -> None:
        """The caller is here again, and waits for the step."""
        self._away = self._clock() - self._left

    def note_step(self, plan: _core.SchedulerOutput, copying_time: int) -> None:
        """The plan noted last was carried out, of which its copies took so many nanoseconds."""
        if copying_time > 0:
            self._meter.note_copies(plan, copying_time)
        nanoseconds = self._clock() - self._begun - copying_time
        if self._away <= _MOST_AWAY * nanoseconds:  # else it may have been over long before the caller came
            self._meter.note_step(plan.num_tokens, plan.num_samples, nanoseconds)


def _tell(scheduler: _core.Scheduler, costs: PreemptionCosts) -> None:
    scheduler.set_costs(
        _core.PreemptionCosts(
            seconds_per_token=costs.seconds_per_token,
            seconds_per_block_out=costs.seconds_per_block_out,
            seconds_per_block_in=costs.seconds_per_block_in,
        )
    )


def _tell_nobody(costs: PreemptionCosts) -> None:
    pass
