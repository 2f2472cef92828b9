"""Executor: carries out what the scheduler planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastpaged import _core


class Executor(Protocol):
    """One step at a time: a plan goes in, sampled tokens come out; logits never leave the worker."""

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """REQUIRES: plan is the scheduler's last one. Releases the GIL while it computes."""

    def close(self) -> None:
        """Frees the workers' memory. Idempotent."""
