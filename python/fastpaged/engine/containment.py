"""After a broken invariant of the scheduler: whoever it concerns fails, and the engine goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged import _core

_LOOK_EVERY_NS = 10**9


class Containment:
    """Of one scheduler. request_id: the name of a group's request, for the log. clock: in nanoseconds."""

    def __init__(
        self, scheduler: _core.Scheduler, request_id: Callable[[int], str | None], clock: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._request_id = request_id
        self._clock = clock
        self._looked_at: int | None = None

    def contain(self, error: Exception) -> _core.Quarantine:
        """Whom the scheduler has failed for this error of its own, and whose blocks it uses no more. Raises the error
        if nothing is wrong with the scheduler."""
        done = self._scheduler.quarantine()
        if not done.found:
            raise error
        owners = [repr(self._request_id(group_id) or group_id) for group_id in done.failed]
        logging.getLogger(__name__).error(
            "a broken invariant: %s. Requests that it concerns, and that fail: %s. %d KV blocks are out of use by now. "
            "Found wrong:\n  %s",
            error,
            ", ".join(owners) or "none",
            self._scheduler.num_quarantined_blocks,
            "\n  ".join(done.found),
        )
        return done

    def knows(self, group_id: int) -> bool:
        """Whether the scheduler has it still, running or waiting."""
        try:
            self._scheduler.sequences(group_id)
        except ValueError:
            return False
        return True

    def look(self) -> list[int]:
        """Whom the scheduler has failed because references to blocks did not add up: looked for now and then, so that
        what nobody trips over does not stay. REQUIRES: no plan is being carried out."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY_NS:
            return []
        self._looked_at = now
        try:
            self._scheduler.check_references()
        except RuntimeError as error:
            try:
                return self.contain(error).failed
            except RuntimeError:
                logging.getLogger(__name__).exception("an invariant is broken, and it cannot be found where")
        return []
