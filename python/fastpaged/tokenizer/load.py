"""Finds a model's tokenizer and builds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.formats.file_kind import FOLDER, file_kind
from fastpaged.formats.gguf import GgufFile
from fastpaged.formats.locate import find_gguf
from fastpaged.tokenizer.from_folder import tokenizer_by_transformers, tokenizer_from_folder
from fastpaged.tokenizer.from_gguf import tokenizer_from_gguf
from fastpaged.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    import os


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a .gguf file; of a folder with files of a tokenizer: the first of tokenizer.json, vocab.json
    with merges.txt, tokenizer.model; of a folder that holds one .gguf file; and where nothing else serves, of a folder
    that transformers can read, if that is installed.

    Raises ModelNotFoundError where none of them is, ModelFormatError where a file is damaged or not supported.
    """
    folder = Path(path)
    definition = tokenizer_from_folder(folder) if file_kind(folder) == FOLDER else None
    if definition is None:
        gguf = find_gguf(path)
        if gguf is not None:
            with GgufFile.open(gguf) as file:
                return Tokenizer(tokenizer_from_gguf(file.metadata, str(gguf)))
        definition = tokenizer_by_transformers(folder)
    return Tokenizer(definition)
