"""A tokenizer from a model folder: tokenizer.json, or vocab.json with merges.txt, or tokenizer.model."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats.file_kind import file_kind
from fastpaged.tokenizer.byte_level_files import byte_level_backend, cut_of
from fastpaged.tokenizer.definition import TokenizerDefinition, frame_with
from fastpaged.tokenizer.failures import library_failures
from fastpaged.tokenizer.json_file import read_json_object, read_text
from fastpaged.tokenizer.sentence_piece_file import is_sentence_piece_model, read_sentence_piece_model
from fastpaged.tokenizer.tokenizer_config import TokenizerConfig
from fastpaged.tokenizer.transformers_tokenizer import backend_by_transformers

if TYPE_CHECKING:
    from pathlib import Path

_KINDS_OF_FILES = "tokenizer.json, vocab.json with merges.txt, SentencePiece's tokenizer.model"
_END_OF_TEXT = "<|endoftext|>"
_NAMED_LIKE_THE_END = {"bos_token", "eos_token", "unk_token"}  # each is GPT-2's end of text where the files do not say
_NAMES_OF_TOKENIZERS = ("tokenizer", "vocab", "merges", "spiece", "sentencepiece")  # a folder without has none


def tokenizer_from_folder(folder: Path) -> TokenizerDefinition | None:
    """Reads the first of _KINDS_OF_FILES that is there, and tokenizer_config.json, special_tokens_map.json,
    added_tokens.json, config.json, generation_config.json and chat_template.jinja, which may be.

    None where none of them is there. Raises ModelFormatError.
    """
    if _is_there(folder / "tokenizer.json"):
        return _from_tokenizer_json(folder)
    if _is_there(folder / "vocab.json") and _is_there(folder / "merges.txt"):
        config = TokenizerConfig(folder)
        cut = cut_of(config.content.get("tokenizer_class"), read_json_object(folder / "config.json").get("model_type"))
        if cut is not None:
            return _from_vocabulary_and_merges(folder, config, cut)
    if is_sentence_piece_model(folder / "tokenizer.model"):
        return _from_sentence_piece(folder)
    return None


def tokenizer_by_transformers(folder: Path) -> TokenizerDefinition:
    """For a folder with files of another kind of tokenizer. Raises ModelNotFoundError, ModelFormatError."""
    expected = f"model: the folder {str(folder)!r} must hold {_KINDS_OF_FILES}, or one .gguf file"
    if not any(path.name.startswith(_NAMES_OF_TOKENIZERS) for path in folder.iterdir()):
        raise ModelNotFoundError(f"{expected}; it has none of them")
    backend = backend_by_transformers(folder, expected)
    return _definition(folder, TokenizerConfig(folder), backend, source=str(folder))


def _from_tokenizer_json(folder: Path) -> TokenizerDefinition:
    """What is put around a text is tokenizer.json's word alone: `add_bos_token` in tokenizer_config.json speaks of the
    slow tokenizer that it was made from, and transformers does not heed it here either."""
    file = folder / "tokenizer.json"
    with library_failures(f"{file}: expected a tokenizer of the tokenizers library, found "):
        backend = tokenizers.Tokenizer.from_str(read_text(file) or "")
    config = TokenizerConfig(folder)
    config.add_tokens(backend)
    return _definition(folder, config, backend, source=str(file))


def _from_vocabulary_and_merges(folder: Path, config: TokenizerConfig, cut: str) -> TokenizerDefinition:
    backend = byte_level_backend(folder, cut, adds_space=config.flag("add_prefix_space", default=False))
    config.add_tokens(backend, file_has_none=True)
    if not config.named.keys() >= _NAMED_LIKE_THE_END and backend.token_to_id(_END_OF_TEXT) is not None:
        backend.add_special_tokens([AddedToken(_END_OF_TEXT, normalized=False, special=True)])
    bos, eos = config.named_id("bos_token", backend), config.named_id("eos_token", backend)
    adds_bos, adds_eos = config.flag("add_bos_token", default=False), config.flag("add_eos_token", default=False)
    frame_with(backend, bos if adds_bos else None, eos if adds_eos else None)
    return _definition(folder, config, backend, source=str(folder / "vocab.json"))


def _from_sentence_piece(folder: Path) -> TokenizerDefinition:
    file, config = folder / "tokenizer.model", TokenizerConfig(folder)
    model = read_sentence_piece_model(file)
    backend = model.vocabulary.backend()
    config.add_tokens(backend, file_has_none=True)
    named_bos, named_eos = config.named_id("bos_token", backend), config.named_id("eos_token", backend)
    bos = model.bos_token_id if named_bos is None else named_bos
    eos = model.eos_token_id if named_eos is None else named_eos
    adds_bos, adds_eos = config.flag("add_bos_token", default=True), config.flag("add_eos_token", default=False)
    frame_with(backend, bos if adds_bos else None, eos if adds_eos else None)
    pieces = model.vocabulary.pieces
    named = {"bos_token": model.bos_token_id, "eos_token": model.eos_token_id}
    texts = {name: pieces[token_id] for name, token_id in named.items() if token_id is not None}
    return _definition(folder, config, backend, source=str(file), bos=bos, eos=eos, texts=texts)


def _definition(
    folder: Path,
    config: TokenizerConfig,
    backend: tokenizers.Tokenizer,
    *,
    source: str,
    bos: int | None = None,
    eos: int | None = None,
    texts: dict[str, str] | None = None,
) -> TokenizerDefinition:
    """bos, eos, texts: what the tokenizer's own file says of special tokens."""
    backend.no_truncation()
    backend.no_padding()
    bos = config.named_id("bos_token", backend) if bos is None else bos
    eos = config.named_id("eos_token", backend) if eos is None else eos
    vocab_size = max(_vocab_size(backend), _declared_vocab_size(folder))
    model_bos = _ids(folder / "config.json", "bos_token_id", vocab_size)
    ends = _ids(folder / "config.json", "eos_token_id", vocab_size)
    ends |= _ids(folder / "generation_config.json", "eos_token_id", vocab_size)
    return TokenizerDefinition(
        source=source,
        backend=backend,
        bos_token_id=bos if bos is not None else min(model_bos, default=None),
        eos_token_ids=ends if eos is None else ends | {eos},
        special_tokens=(texts or {}) | config.named,
        chat_templates=config.chat_templates(),
    )


def _is_there(path: Path) -> bool:
    """If it is no file, reading it says so."""
    return file_kind(path) is not None


def _ids(path: Path, key: str, vocab_size: int) -> frozenset[int]:
    """One id or a list of them; null and -1 mean none."""
    value = read_json_object(path).get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    ids = [token_id for token_id in listed if type(token_id) is int and token_id >= -1]
    if len(ids) != len(listed):
        raise ModelFormatError(f"{path}: {key}: expected a token id or a list of them, found {reprlib.repr(value)}")
    for token_id in ids:
        if token_id >= vocab_size:
            expected = f"a token id below {vocab_size}, the size of the vocabulary"
            raise ModelFormatError(f"{path}: {key}: expected {expected}, found {reprlib.repr(token_id)}")
    return frozenset(token_id for token_id in ids if token_id >= 0)


def _vocab_size(backend: tokenizers.Tokenizer) -> int:
    return 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)


def _declared_vocab_size(folder: Path) -> int:
    """Of the model, which may pad its vocabulary; 0 where config.json has none that a model could have."""
    size = read_json_object(folder / "config.json").get("vocab_size")
    return size if type(size) is int and 0 < size < 2**31 else 0
