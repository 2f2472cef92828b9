"""Where a model's GGUF file is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats.file_kind import FOLDER, REGULAR_FILE, file_kind

if TYPE_CHECKING:
    import os


def find_gguf(path: str | os.PathLike[str]) -> Path | None:
    """The GGUF file that `path` names: `path` itself if it is a file, or the only *.gguf of a folder.

    None for a folder without one. Raises ModelNotFoundError where nothing is at `path`, and ModelFormatError for a
    folder with several. What a file is, its first bytes say, not its name: opening it shows. A pipe or a device in the
    folder counts, so that opening it refuses it by name.
    """
    place = Path(path)
    kind = file_kind(place)
    if kind == FOLDER:
        try:
            found = sorted(f for f in place.iterdir() if f.suffix == ".gguf" and file_kind(f) not in (None, FOLDER))
        except OSError as error:
            raise ModelNotFoundError(f"model: the folder {str(place)!r} cannot be read: {error}") from None
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise ModelFormatError(f"model: {place} holds {len(found)} GGUF files ({names}); name the one to use")
        return found[0] if found else None
    if kind != REGULAR_FILE:
        there = kind or "nothing"
        raise ModelNotFoundError(
            f"model: {there} is at {str(place)!r}; it must be a .gguf file or a model folder, or be called as on the "
            "hub (org/name)"
        )
    return place
