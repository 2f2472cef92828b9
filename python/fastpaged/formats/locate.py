"""Where a model's GGUF file is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    import os


def find_gguf(path: str | os.PathLike[str]) -> Path | None:
    """The GGUF file that `path` names: `path` itself if it is a file, or the only *.gguf of a folder.

    None for a folder without one. Raises ModelNotFoundError where nothing is at `path`, and ModelFormatError for a
    folder with several. What a file is, its first bytes say, not its name: opening it shows.
    """
    place = Path(path)
    if place.is_dir():
        found = sorted(file for file in place.iterdir() if file.suffix == ".gguf" and file.is_file())
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise ModelFormatError(f"model: {place} holds {len(found)} GGUF files ({names}); name the one to use")
        return found[0] if found else None
    if not place.is_file():  # a FIFO or a device would keep its reader waiting
        there = "no regular file" if place.exists() else "nothing"
        raise ModelNotFoundError(f"model: {there} is at {str(place)!r}; expected a .gguf file or a model folder")
    return place
