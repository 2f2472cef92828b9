"""Finds a model's tokenizer and builds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import ModelNotFoundError
from fastpaged.formats.file_kind import file_kind
from fastpaged.formats.gguf import GgufFile
from fastpaged.formats.locate import find_gguf
from fastpaged.tokenizer.from_folder import tokenizer_from_folder
from fastpaged.tokenizer.from_gguf import tokenizer_from_gguf
from fastpaged.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    import os


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a .gguf file, of a folder with tokenizer.json, or of a folder that holds one .gguf file.

    Raises ModelNotFoundError where none of them is, ModelFormatError where a file is damaged or not supported.
    """
    folder = Path(path)
    if file_kind(folder / "tokenizer.json") is not None:  # if it is no file, reading it says so
        return Tokenizer(tokenizer_from_folder(folder))
    gguf = find_gguf(path)
    if gguf is None:
        raise ModelNotFoundError(
            f"model: the folder {str(folder)!r} must hold tokenizer.json or one .gguf file; it has neither"
        )
    with GgufFile.open(gguf) as file:
        return Tokenizer(tokenizer_from_gguf(file.metadata, str(gguf)))
