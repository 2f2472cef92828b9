"""Follower: an engine at work, seen through the recording that it writes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.simulator.recording import Reader, WholeLines
from fastpaged.simulator.replay import Replayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastpaged import _core
    from fastpaged.simulator.header import Header
    from fastpaged.simulator.replay import Difference

_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(frozen=True)
class FollowedStep:
    """scheduler: as the recorded one was after this step: a replayed one, the same all the time. plan: of this step.

    number: of the step, from 1. time: nanoseconds since the recording began, when it was over. duration: of it, from
    its planning to its results, in nanoseconds. is_last: the file has no more by now.
    differences: what the replay decided otherwise, so that it cannot be relied on any more.
    """

    scheduler: _core.Scheduler
    plan: _core.SchedulerOutput
    number: int
    time: int
    duration: int
    is_last: bool
    differences: tuple[Difference, ...]


class Follower:
    """Reads a recording while it is written. For one thread."""

    def __init__(self, path: str) -> None:
        """Raises OSError for a file that cannot be read. Its header may be still to come."""
        self._path = path
        self._file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115  # until close()
        self._lines = WholeLines(self._file.readline)
        self._reader = Reader(path)
        self._replayer: Replayer | None = None
        self._planned = 0
        self._differences: list[Difference] = []

    @property
    def header(self) -> Header | None:
        """None before it is written."""
        return None if self._replayer is None else self._replayer.header

    def steps(self, wait: Callable[[], bool] | None = None) -> Iterator[FollowedStep]:
        """Each step that is in the file, in order. wait: called when there is no more for now; False: it is enough.
        None: that is for ever, looking every now and then. Another call goes on where this one ended.

        Raises InvalidRequestError where the file is no recording.
        """
        while True:
            step = self._next_step()
            if step is not None:
                yield step
            elif not (_slept if wait is None else wait)():
                return

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_step(self) -> FollowedStep | None:
        """What comes between two steps is passed over, and done."""
        for line in self._lines:
            if self._replayer is None:
                self._replayer = Replayer(self._reader.header(line))
                continue
            event = self._reader.event(line)
            self._differences += self._replayer.feed(event)
            if event.kind == "plan":
                self._planned = event.time
            elif event.kind == "update" and self._replayer.plan is not None:
                differences, self._differences = tuple(self._differences), []
                return FollowedStep(
                    self._replayer.scheduler,
                    self._replayer.plan,
                    self._replayer.step,
                    event.time,
                    event.time - self._planned,
                    not self._lines.has_more(),
                    differences,
                )
        return None


def _slept() -> bool:
    time.sleep(_SECONDS_BETWEEN_LOOKS)
    return True
