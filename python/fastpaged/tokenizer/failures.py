"""Failures of the `tokenizers` library as typed errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def library_failures(what: str) -> Iterator[None]:
    """Raises ModelFormatError, beginning with `what`, for whatever the library raises.

    It raises bare Exceptions, and where a tokenizer's definition breaks its assumptions it panics: a PanicException,
    which has no public name and is no Exception, so that it would fall through every handler.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ModelFormatError(f"{what}{error}") from None
        raise
