"""The executor of one worker in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpaged import _core
    from fastpaged.worker.worker import Worker


class InProcessExecutor:
    """Has its worker, which it owns, move a plan's blocks and compute the batch that the plan becomes."""

    def __init__(self, worker: Worker, batch_builder: _core.BatchBuilder) -> None:
        self._worker = worker
        self._batch_builder = batch_builder

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """REQUIRES: plan is the scheduler's last one.

        The plan's copies come first: its batch finds its blocks where they go. If this raises, nobody knows how far
        they got, and the scheduler recomputes the requests they belonged to.
        """
        self._worker.copy(plan)
        return self._worker.execute(self._batch_builder.build(plan))

    def start(self, plan: _core.SchedulerOutput) -> None:
        """The same beside the caller: the plan is copied and its batch built when this returns, not computed.
        REQUIRES: plan is the scheduler's last one; finish() was called since the last start()."""
        self._worker.copy(plan)
        self._worker.start(self._batch_builder.build(plan))

    def finish(self) -> _core.SamplerOutput:
        """Waits for what was started, and raises what it raised."""
        return self._worker.finish()

    def close(self) -> None:
        """Closes the worker."""
        self._worker.close()
