"""Text and JSON files of a model folder, with errors that name the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError
from fastpaged.formats.file_kind import REGULAR_FILE, file_kind

if TYPE_CHECKING:
    from pathlib import Path


def read_json_object(path: Path) -> dict[str, object]:
    """The object in `path`; empty where there is no such file. Raises ModelFormatError."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: expected JSON in UTF-8, found {type(error).__name__}: {error}") from None
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def read_text(path: Path) -> str | None:
    """The text in `path`; None where there is no such file. Raises ModelFormatError, also for a pipe or a device."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path}: expected UTF-8 text, found {type(error).__name__}: {error}") from None


def read_bytes(path: Path) -> bytes | None:
    """All of the file; None where there is none. Raises ModelFormatError, also for a pipe or a device."""
    kind = file_kind(path)
    if kind not in (REGULAR_FILE, None):
        raise ModelFormatError(f"{path}: expected a regular file, found {kind}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path}: expected a file to read, found {type(error).__name__}: {error}") from None
