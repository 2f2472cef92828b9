"""The last resort: a tokenizer that only `transformers` can make of a folder's files.

`transformers` is no dependency of fastpaged; it is imported here, when nothing else serves, if it is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers

from fastpaged.errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    from pathlib import Path


def backend_by_transformers(folder: Path, expected: str) -> tokenizers.Tokenizer:
    """The `tokenizers` pipeline inside AutoTokenizer's; code that comes with the model is not run.

    `expected` begins errors: what fastpaged reads by itself. Raises ModelNotFoundError where transformers is not
    installed or finds nothing either, ModelFormatError where what it makes has no such pipeline.
    """
    absent = f"{expected}; it has none that fastpaged can read"
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ModelNotFoundError(
            f"{absent}, and transformers, which may know this kind, is not installed (pip install transformers)"
        ) from None
    try:
        made = AutoTokenizer.from_pretrained(str(folder), use_fast=True, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # it is a stranger's code over a stranger's files: any exception may come out of it
        raise ModelNotFoundError(f"{absent}, and transformers failed too: {error}") from error
    backend = getattr(made, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        found = f"{type(made).__name__}, which transformers runs in Python"
        raise ModelFormatError(f"{folder}: expected a pipeline of the tokenizers library, found {found}")
    return backend
