"""JSON files of a model folder, with errors that name the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError

if TYPE_CHECKING:
    from pathlib import Path


def read_json_object(path: Path) -> dict[str, object]:
    """The object in `path`; empty where there is no such file. Raises ModelFormatError."""
    if path.exists() and not path.is_file():  # a FIFO would keep its reader waiting
        raise ModelFormatError(f"{path}: expected a regular file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: expected JSON in UTF-8, found {type(error).__name__}: {error}") from None
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content
