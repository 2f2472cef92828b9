"""Byte-level BPE from vocab.json and merges.txt, the files of GPT-2 and of those who followed it (OPT, Qwen2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer.failures import library_failures
from fastpaged.tokenizer.json_file import read_json_object, read_text
from fastpaged.tokenizer.pre_tokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# By tokenizer_class in tokenizer_config.json, less a "Fast" at its end; or else by model_type in config.json.
_CUT_OF_CLASS: Mapping[str, str] = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
_CUT_OF_MODEL: Mapping[str, str] = {"gpt2": "gpt-2", "opt": "gpt-2", "qwen2": "qwen2", "qwen3": "qwen2"}


def cut_of(tokenizer_class: object, model_type: object) -> str | None:
    """The key of PRE_TOKENIZERS by which such a tokenizer cuts text; None for one that is not known."""
    if isinstance(tokenizer_class, str):
        return _CUT_OF_CLASS.get(tokenizer_class.removesuffix("Fast"))
    return _CUT_OF_MODEL.get(model_type) if isinstance(model_type, str) else None


def byte_level_backend(folder: Path, cut: str, *, adds_space: bool) -> tokenizers.Tokenizer:
    """`cut`: a key of PRE_TOKENIZERS. adds_space: a space before a text that begins with none.

    Raises ModelFormatError.
    """
    vocabulary, merges = _vocabulary(folder / "vocab.json"), _merges(folder / "merges.txt")
    with library_failures(f"{folder / 'merges.txt'}: expected pairs of tokens whose union is a token, found "):
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    PRE_TOKENIZERS[cut].apply(backend)
    if adds_space:
        if cut != "gpt-2":
            raise ModelFormatError(f"{folder}: add_prefix_space: expected false where text is cut as {cut}, found true")
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return backend


def _vocabulary(path: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for token, token_id in read_json_object(path).items():
        if type(token_id) is not int or not 0 <= token_id < 2**31:
            raise ModelFormatError(f"{path}: {token[:80]!r}: expected a token id, found {token_id!r:.80}")
        vocabulary[token] = token_id
    if len(set(vocabulary.values())) != len(vocabulary):
        raise ModelFormatError(f"{path}: expected an id of its own for every token, found one twice")
    return vocabulary


def _merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate((read_text(path) or "").split("\n"), start=1):
        if not line.strip() or line.startswith("#version:"):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            expected = "expected two tokens with a space between"
            raise ModelFormatError(f"{path}: line {number}: {expected}, found {line[:80]!r}")
        merges.append((parts[0], parts[1]))
    return merges
