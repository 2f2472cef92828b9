"""The executor of one worker in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpaged import _core
    from fastpaged.worker.worker import Worker


class InProcessExecutor:
    """Turns a plan into the arrays of a batch and hands them to its worker, which it owns."""

    def __init__(self, worker: Worker, batch_builder: _core.BatchBuilder) -> None:
        self._worker = worker
        self._batch_builder = batch_builder

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """REQUIRES: plan is the scheduler's last one."""
        return self._worker.execute(self._batch_builder.build(plan))

    def close(self) -> None:
        """Closes the worker."""
        self._worker.close()
