"""Where the figures of a measurement go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path


def check_writable(path: Path, option: str = "--json") -> None:
    """Before the work is done whose figures go there. A file that is there is left as it is."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InvalidRequestError(f"{option}: {path} cannot be written: {error.strerror}") from None
