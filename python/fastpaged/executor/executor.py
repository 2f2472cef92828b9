"""Executor: carries out what the scheduler planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastpaged import _core


class Executor(Protocol):
    """One step at a time: a plan goes in, sampled tokens come out; logits never leave the worker."""

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """REQUIRES: plan is the scheduler's last one. Releases the GIL while it computes."""

    def start(self, plan: _core.SchedulerOutput) -> None:
        """Begins to carry out a plan, and returns. REQUIRES: plan is the scheduler's last one, and what was started
        before is finished."""

    def finish(self) -> _core.SamplerOutput:
        """Waits for what was started, and raises what it raised. Releases the GIL."""

    def close(self) -> None:
        """Frees the workers' memory. Idempotent."""
