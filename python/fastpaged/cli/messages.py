"""Messages: warnings and log records of fastpaged, shown to people as one line each on stderr."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from fastpaged.progress import ProgressBar

_LOGGER = "fastpaged"


class Messages(logging.Handler):
    """A context in which a warning is the line `fastpaged: warning: TEXT`, and a bar being drawn makes room for it.

    A logged exception is a bug of ours: it keeps its traceback, and `saw_exception` is true from then on. Other logged
    errors are not shown: they are about one request, and whoever asked tells of its end.
    """

    def __init__(self, bar: ProgressBar | None) -> None:
        super().__init__(logging.WARNING)
        self.saw_exception = False
        self._bar = bar
        self._undo = ExitStack()

    def __enter__(self) -> Messages:
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self)
        self._undo.callback(logger.removeHandler, self)
        self._undo.callback(setattr, warnings, "showwarning", warnings.showwarning)
        warnings.showwarning = self._show_warning
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a log record."""
        if record.exc_info:
            self.saw_exception = True
            self._write(self.format(record))
        elif record.levelno < logging.ERROR:
            self._warn(record.getMessage())

    def _show_warning(self, message: Warning | str, *_: object, **__: object) -> None:
        self._warn(str(message))

    def _warn(self, text: str) -> None:
        self._write(f"fastpaged: warning: {' '.join(text.split())}")

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(text, file=sys.stderr)
