"""Figures: how a run went, as it was recorded or as it is predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged import _core

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Figures:
    """Times in seconds, in percentiles over requests: PERCENTILES. Empty where no request got so far.

    makespan: from the first arrival to the last results. throughput: output tokens a second of it. ttft: from a
    request's arrival to its first token; tpot: from one token to the next, its mean; queue_time: until it was first let
    in. hit_rate: of the prompts' tokens that were looked up in the prefix cache. kv_use: of the pool's blocks, the mean
    share in use over steps. num_pins_left_out: that were recorded, and cannot be with other settings.
    """

    num_requests: int = 0
    num_steps: int = 0
    makespan: float = 0.0
    num_output_tokens: int = 0
    throughput: float = 0.0
    ttft: tuple[float, ...] = ()
    tpot: tuple[float, ...] = ()
    queue_time: tuple[float, ...] = ()
    num_preemptions: int = 0
    num_tokens_recomputed: int = 0
    num_bytes_swapped: int = 0
    hit_rate: float = 0.0
    kv_use: float = 0.0
    num_pins_left_out: int = 0


@dataclass
class _Times:
    arrival: int
    let_in: int | None = None
    first_token: int | None = None
    last_token: int = 0
    num_steps: int = 0  # that brought it a token


@dataclass
class Tally:
    """Adds up a run. Times in nanoseconds of its clock."""

    block_bytes: float
    _requests: dict[int, _Times] = field(default_factory=dict)
    _num_steps: int = 0
    _num_tokens: int = 0
    _use: float = 0.0
    _begin: int | None = None
    _end: int = 0
    _num_pins_left_out: int = 0

    def leave_out_pin(self) -> None:
        """One that cannot be."""
        self._num_pins_left_out += 1

    def add(self, group_id: int, time: int) -> None:
        """A request arrives."""
        self._requests[group_id] = _Times(time)
        self._begin = time if self._begin is None else self._begin

    def plan(self, plan: _core.SchedulerOutput, scheduler: _core.Scheduler, time: int) -> None:
        """A step is planned."""
        self._num_steps += 1
        self._use += 1.0 - scheduler.num_free_blocks / scheduler.num_blocks
        for group_id in plan.let_in:
            times = self._requests[group_id]
            times.let_in = time if times.let_in is None else times.let_in

    def update(self, events: Sequence[_core.SequenceEvent], time: int) -> None:
        """A step's results are there."""
        self._end = time
        moved = set()
        for event in events:
            if event.token_id is not None:
                self._num_tokens += 1
                moved.add(event.group_id)
        for group_id in moved:
            times = self._requests[group_id]
            times.first_token = time if times.first_token is None else times.first_token
            times.last_token = time
            times.num_steps += 1

    def figures(self, scheduler: _core.Scheduler) -> Figures:
        """Of all that was added up."""
        stats = scheduler.stats
        requests = self._requests.values()
        makespan = (self._end - (self._begin or 0)) / 1e9
        num_blocks = stats.num_blocks_swapped_out + stats.num_blocks_swapped_in
        return Figures(
            num_requests=len(requests),
            num_steps=self._num_steps,
            makespan=makespan,
            num_output_tokens=self._num_tokens,
            throughput=self._num_tokens / makespan if makespan > 0 else 0.0,
            ttft=_percentiles([t.first_token - t.arrival for t in requests if t.first_token is not None]),
            tpot=_percentiles(
                [
                    (t.last_token - t.first_token) / (t.num_steps - 1)
                    for t in requests
                    if t.first_token is not None and t.num_steps > 1
                ]
            ),
            queue_time=_percentiles([t.let_in - t.arrival for t in requests if t.let_in is not None]),
            num_preemptions=stats.num_preemptions,
            num_tokens_recomputed=stats.num_tokens_recomputed,
            num_bytes_swapped=round(num_blocks * self.block_bytes),
            hit_rate=stats.num_prefix_tokens_found / max(1, stats.num_prefix_tokens_looked_up),
            kv_use=self._use / max(1, self._num_steps),
            num_pins_left_out=self._num_pins_left_out,
        )


def _percentiles(nanoseconds: Sequence[float]) -> tuple[float, ...]:
    if not nanoseconds:
        return ()
    return tuple((np.percentile(np.array(nanoseconds, np.float64), PERCENTILES) / 1e9).tolist())
