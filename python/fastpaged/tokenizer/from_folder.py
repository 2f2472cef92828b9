"""A tokenizer from a model folder: tokenizer.json and the small files beside it."""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer.definition import TokenizerDefinition
from fastpaged.tokenizer.failures import library_failures
from fastpaged.tokenizer.json_file import read_json_object, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_ID = re.compile("[0-9]{1,10}")
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def tokenizer_from_folder(folder: Path) -> TokenizerDefinition:
    """Reads tokenizer.json, which must be there, and tokenizer_config.json, special_tokens_map.json, config.json,
    generation_config.json and chat_template.jinja, which may be. Raises ModelFormatError.

    What is put around a text is tokenizer.json's word alone: `add_bos_token` in tokenizer_config.json speaks of the
    slow tokenizer that it was made from, and transformers does not heed it here either.
    """
    file = folder / "tokenizer.json"
    with library_failures(f"{file}: expected a tokenizer of the tokenizers library, found "):
        backend = tokenizers.Tokenizer.from_str(read_text(file) or "")
    backend.no_truncation()
    backend.no_padding()
    config = _TokenizerConfig(folder)
    config.add_tokens(backend)
    bos, eos = config.named_id("bos_token", backend), config.named_id("eos_token", backend)
    vocab_size = max(_vocab_size(backend), _declared_vocab_size(folder))
    model_bos = _ids(folder / "config.json", "bos_token_id", vocab_size)
    ends = _ids(folder / "config.json", "eos_token_id", vocab_size)
    ends |= _ids(folder / "generation_config.json", "eos_token_id", vocab_size)
    return TokenizerDefinition(
        source=str(file),
        backend=backend,
        bos_token_id=bos if bos is not None else min(model_bos, default=None),
        eos_token_ids=ends if eos is None else ends | {eos},
        special_tokens=config.named,
        chat_templates=config.chat_templates(),
    )


class _TokenizerConfig:
    """tokenizer_config.json, over special_tokens_map.json, which older folders have beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "tokenizer_config.json"
        self.content = read_json_object(folder / "special_tokens_map.json") | read_json_object(self.path)
        named = {name: self.content.get(name) for name in _NAMED_TOKENS}
        self.named = {name: self.text_of(name, token) for name, token in named.items() if token is not None}

    def named_id(self, name: str, backend: tokenizers.Tokenizer) -> int | None:
        return backend.token_to_id(self.named[name]) if name in self.named else None

    def add_tokens(self, backend: tokenizers.Tokenizer) -> None:
        """Tokens that only this file calls special or added. None gets an id that the model has no row for."""
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        for token_id, token in self.declared_tokens():
            if token.content in known:
                continue
            backend.add_tokens([token])
            if backend.token_to_id(token.content) != token_id:
                found = f"{backend.token_to_id(token.content)} as the next free one"
                raise self.error(f"added_tokens_decoder, {token.content[:80]!r}", f"id {token_id}", found)
            known.add(token.content)
        specials = [text for text in self.special_texts() if text not in known]
        in_vocabulary = [text for text in specials if backend.token_to_id(text) is not None]
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in in_vocabulary])

    def declared_tokens(self) -> Iterable[tuple[int, AddedToken]]:
        key = "added_tokens_decoder"
        entries = self.content.get(key, {})
        if not isinstance(entries, dict) or not all(_ID.fullmatch(token_id) for token_id in entries):
            raise self.error(key, "an object of token ids", f"{entries!r:.80}")
        for token_id, entry in sorted(
            ((int(name), entry) for name, entry in entries.items()), key=lambda item: item[0]
        ):
            if not isinstance(entry, dict):
                raise self.error(f"{key}[{token_id}]", "a token: an object with its content", f"{entry!r:.80}")
            text = self.text_of(f"{key}[{token_id}]", entry)
            flags = {name: entry.get(name, False) for name in ("single_word", "lstrip", "rstrip", "special")}
            if not all(type(flag) is bool for flag in flags.values()):
                raise self.error(f"{key}[{token_id}]", "flags that are true or false", flags)
            yield token_id, AddedToken(text, normalized=bool(entry.get("normalized", not flags["special"])), **flags)

    def special_texts(self) -> list[str]:
        texts = list(self.named.values())
        for key in _MORE_TOKENS:
            more = self.content.get(key) or []
            if isinstance(more, dict):  # some files name their extra tokens
                more = list(more.values())
            if not isinstance(more, list):
                raise self.error(key, "a list of tokens", f"{more!r:.80}")
            texts += [self.text_of(key, token) for token in more]
        return texts

    def chat_templates(self) -> dict[str, str]:
        """The file chat_template.jinja, or else the key chat_template: one template, or a list of named ones."""
        template_file = read_text(self.folder / "chat_template.jinja")
        if template_file is not None:
            return {"default": template_file}
        found = self.content.get("chat_template")
        if found is None:
            return {}
        entries = [{"name": "default", "template": found}] if isinstance(found, str) else found
        templates: dict[str, str] = {}
        for entry in entries if isinstance(entries, list) else [entries]:
            name, template = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
            if not isinstance(name, str) or not isinstance(template, str):
                raise self.error("chat_template", "a string or a list of {name, template}", f"{found!r:.80}")
            templates[name] = template
        return templates

    def text_of(self, what: str, token: object) -> str:
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str) or not text or not _is_utf8(text):
            raise self.error(what, "a token: a string, or an object with its content", f"{token!r:.80}")
        return text

    def error(self, what: str, expected: str, found: object) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: {what}: expected {expected}, found {found}")


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


def _is_utf8(text: str) -> bool:
    """JSON may spell out half a surrogate pair, which no tokenizer takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
