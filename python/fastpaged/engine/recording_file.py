"""RecordingFile: where a recording goes, a line of JSON an event."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, TextIO

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT = 1


class RecordingFile:
    """Writes events in order. If that fails, one warning is all that comes of it, and `is_open` is false from then on:
    what is there can be replayed up to its last whole line."""

    def __init__(self, path: str, clock: Callable[[], int]) -> None:
        """An existing file is overwritten. clock: in nanoseconds; events have the time since the one before them.

        Raises InvalidRequestError if nothing can be written there.
        """
        self.path = path
        self._clock = clock
        self.start = self._last = clock()
        try:
            self._file: TextIO | None = open(path, "w", encoding="ascii", newline="\n")  # noqa: SIM115  # until close()
        except OSError as error:
            raise InvalidRequestError(
                f"record must be a file that can be written, got {path!r}: {error.strerror}"
            ) from error

    @property
    def is_open(self) -> bool:
        """Whether events are still written."""
        return self._file is not None

    def write(self, kind: str, fields: Mapping[str, object], now: int | None = None) -> None:
        """An event that happened now, or at that time of the clock. It may stay in memory until flush()."""
        if self._file is None:
            return
        now = self._clock() if now is None else now
        event: dict[str, object] = {"e": kind, "t": now - self._last}
        event.update(fields)
        self._last = now
        try:
            self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Whoever follows the file finds all that was written."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self._warn(error.strerror or str(error))

    def end(self, why: str) -> None:
        """Nothing is written any more, which a warning says."""
        if self._file is not None:
            self._warn(why)
            self.close()

    def _give_up(self, error: OSError) -> None:
        file, self._file = self._file, None
        self._warn(error.strerror or str(error))
        try:
            if file is not None:
                file.close()  # tries again to write what it holds
        except OSError:
            pass

    def _warn(self, why: str) -> None:
        logging.getLogger(__name__).warning("recording to %s has ended: %s", self.path, why)
