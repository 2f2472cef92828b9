"""A terminal's screen that is drawn anew again and again, or a stream that frames go to one after the other."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

_ESCAPES = re.compile("(\x1b\\[[0-9;]*m)")
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor; back again
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_COLORS = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "dim": "2",
    "bold": "1",
}


@dataclass(frozen=True)
class Style:
    """What a stream can show."""

    colors: bool
    unicode: bool

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """Colours on a terminal unless NO_COLOR is set; other signs than ASCII's where the encoding has them."""
        try:
            "█▓▄░·".encode(stream.encoding or "ascii")
            has_blocks = True
        except (UnicodeEncodeError, LookupError):
            has_blocks = False
        return cls(stream.isatty() and not os.environ.get("NO_COLOR"), has_blocks)

    def paint(self, text: str, color: str) -> str:
        """color: a name of _COLORS, or "" for none."""
        return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if self.colors and color and text else text


def cut(line: str, width: int) -> str:
    """The first so many columns; what is painted stays so, and no colour goes on after the end."""
    pieces = []
    for piece in _ESCAPES.split(line):  # a text, an escape, a text, ...
        if piece.startswith("\x1b"):
            pieces.append(piece)
        else:
            pieces.append(piece[:width])
            width -= len(pieces[-1])
    return "".join(pieces)


class Screen:
    """Shows frames. On a terminal each takes the place of the last one, and what was there before is back at the end;
    elsewhere they follow one another, a blank line between them. A context manager."""

    def __init__(self, stream: TextIO, *, keeps: bool = False) -> None:
        """keeps: frames stay on a terminal, too."""
        self._stream = stream
        self._redraws = stream.isatty() and not keeps
        self._num_shown = 0
        self.style = Style.of(stream)

    def __enter__(self) -> Screen:
        if self._redraws:
            self._stream.write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        if self._redraws:
            self._stream.write(_LEAVE)
            self._stream.flush()

    def size(self) -> tuple[int, int]:
        """(columns, lines), as they are now; 80 by 24 where there is no terminal."""
        return shutil.get_terminal_size() if self._stream.isatty() else (80, 24)

    def show(self, lines: Sequence[str]) -> None:
        """The next frame. Lines fit the screen."""
        if self._redraws:
            self._stream.write(_HOME + f"{_REST_OF_LINE}\n".join(lines) + _REST_OF_LINE + _REST_OF_SCREEN)
        else:
            self._stream.write(("\n" if self._num_shown else "") + "\n".join(lines) + "\n")
        self._num_shown += 1
        self._stream.flush()
