"""Recording: a file that a recording engine wrote, read back. What its lines say: engine/recorder.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError
from fastpaged.simulator.header import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastpaged.simulator.header import Header

_MAX_TIME = 2**62


@dataclass(frozen=True)
class Event:
    """time: nanoseconds since the recording began. line: in the file, from 1. what: its other fields."""

    kind: str
    time: int
    line: int
    what: dict[str, Any]


class Reader:
    """Makes events of lines, which come one after the other."""

    def __init__(self, path: str) -> None:
        """path: to be named by errors."""
        self._path = path
        self._time = 0
        self._line = 0

    def header(self, line: str) -> Header:
        """Of the first line. Raises InvalidRequestError if that is none, or none that this version knows."""
        try:
            return header_of(self.event(line).what)
        except InvalidRequestError:
            raise
        except ValueError as error:
            raise self._refusal(str(error)) from None

    def event(self, line: str) -> Event:
        """Of the next line. Raises InvalidRequestError if that is none."""
        self._line += 1
        try:
            what = json.loads(line)
            kind, passed = what.pop("e"), what.pop("t")
            if type(kind) is not str or type(passed) is not int or not -_MAX_TIME <= self._time + passed <= _MAX_TIME:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._refusal(f"expected an event of a recording, got {line[:40]!r}") from None
        self._time += passed
        return Event(kind, self._time, self._line, what)

    def _refusal(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._path}, line {self._line}: {what}")


@dataclass(frozen=True)
class Recording:
    """All of a file. is_cut: its last line was not whole, as after a crash, and was left out."""

    header: Header
    events: list[Event]
    is_cut: bool


def read_recording(path: str) -> Recording:
    """Raises InvalidRequestError for a file that is no recording, OSError for one that cannot be read."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = WholeLines(file.readline)
        reader = Reader(path)
        first = next(lines, "")
        header = reader.header(first)
        events = [reader.event(line) for line in lines]
        return Recording(header, events, is_cut=lines.rest != "")


class WholeLines:
    """Iterates over those lines of a text that end; `rest` is what comes after the last of them. More may come later,
    and is found by iterating on."""

    def __init__(self, read: Callable[[], str]) -> None:
        """read: the next piece of the text, with at most one line's end, at its end; nothing if there is none yet."""
        self._read = read
        self.rest = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self.has_more():
            raise StopIteration
        line, self.rest = self.rest, ""
        return line

    def has_more(self) -> bool:
        """Whether another line is there."""
        while not self.rest.endswith("\n"):
            piece = self._read()
            if not piece:
                return False
            self.rest += piece
        return True
