"""The executor of one worker in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged import _core
    from fastpaged.worker.worker import Worker


class InProcessExecutor:
    """Has its worker, which it owns, move a plan's blocks and compute the batch that the plan becomes."""

    def __init__(
        self, worker: Worker, batch_builder: _core.BatchBuilder, watch: Callable[[], int] | None = None
    ) -> None:
        """watch: a clock in nanoseconds, for copying_time."""
        self._worker = worker
        self._batch_builder = batch_builder
        self._watch = watch
        self._copying_time = 0

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """REQUIRES: plan is the scheduler's last one.

        The plan's copies come first: its batch finds its blocks where they go. If this raises, nobody knows how far
        they got, and the scheduler recomputes the requests they belonged to.
        """
        self._copy(plan)
        return self._worker.execute(self._batch_builder.build(plan))

    def start(self, plan: _core.SchedulerOutput) -> None:
        """The same beside the caller: the plan is copied and its batch built when this returns, not computed.
        REQUIRES: plan is the scheduler's last one; finish() was called since the last start()."""
        self._copy(plan)
        self._worker.start(self._batch_builder.build(plan))

    def finish(self) -> _core.SamplerOutput:
        """Waits for what was started, and raises what it raised."""
        return self._worker.finish()

    @property
    def copying_time(self) -> int:
        """Nanoseconds that the last plan's copies took; 0 if it had none."""
        return self._copying_time

    def _copy(self, plan: _core.SchedulerOutput) -> None:
        begin = 0 if self._watch is None else self._watch()
        num_bytes = self._worker.copy(plan)
        self._copying_time = self._watch() - begin if self._watch is not None and num_bytes > 0 else 0

    def close(self) -> None:
        """Closes the worker."""
        self._worker.close()
