"""What tokenizer_config.json says beside the tokenizer itself: special and added tokens, and chat templates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenizers import AddedToken

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer.json_file import read_json_object, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import tokenizers

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_ID = re.compile("[0-9]{1,10}")
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


class TokenizerConfig:
    """tokenizer_config.json, over special_tokens_map.json, which older folders have beside it.

    named: the special tokens by what they are for ("bos_token", "eos_token", ...).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "tokenizer_config.json"
        self.content = read_json_object(folder / "special_tokens_map.json") | read_json_object(self.path)
        named = {name: self.content.get(name) for name in _NAMED_TOKENS}
        self.named = {name: self.text_of(name, token) for name, token in named.items() if token is not None}

    def named_id(self, name: str, backend: tokenizers.Tokenizer) -> int | None:
        """The id of "bos_token", say; None where the file names none, or one that the vocabulary lacks."""
        return backend.token_to_id(self.named[name]) if name in self.named else None

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false; null and an absent one are `default`."""
        value = self.content.get(name)
        if value is not None and type(value) is not bool:
            raise self.error(name, "true or false", f"{value!r:.80}")
        return default if value is None else value

    def add_tokens(self, backend: tokenizers.Tokenizer, *, file_has_none: bool = False) -> None:
        """Tokens that only this file calls special or added. None gets an id that the model has no row for.

        file_has_none: the tokenizer's own file cannot say how its added tokens are found in text. What this file says
        counts then, and added_tokens.json too; they are found as they are written, before the text is normalised.
        """
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        spaced = {text.replace(" ", "▁") for text in known if " " in text}  # as SentencePiece writes spaces
        for token_id, token in self.declared_tokens(as_written=file_has_none):
            if token.content in spaced or (token.content in known and not file_has_none):
                continue
            backend.add_tokens([token])
            if backend.token_to_id(token.content) != token_id:
                found = f"{backend.token_to_id(token.content)} as the next free one"
                raise self.error(f"added_tokens_decoder, {token.content[:80]!r}", f"id {token_id}", found)
            known.add(token.content)
        specials = [text for text in self.special_texts() if text not in known]
        in_vocabulary = [text for text in specials if backend.token_to_id(text) is not None]
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in in_vocabulary])

    def declared_tokens(self, *, as_written: bool) -> Iterable[tuple[int, AddedToken]]:
        """In the order of their ids. as_written: none is normalised, and added_tokens.json counts where this file is
        silent."""
        key = "added_tokens_decoder"
        entries = self.content.get(key)
        if entries is None:
            entries = self.older_tokens() if as_written else {}
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
            normalized = not as_written and bool(entry.get("normalized", not flags["special"]))
            yield token_id, AddedToken(text, normalized=normalized, **flags)

    def older_tokens(self) -> dict[str, object]:
        """added_tokens.json as added_tokens_decoder would write it."""
        special = set(self.special_texts())
        tokens = read_json_object(self.folder / "added_tokens.json").items()
        return {f"{token_id}": {"content": text, "special": text in special} for text, token_id in tokens}

    def special_texts(self) -> list[str]:
        """Every token that is called special, by name or in a list."""
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
        """The text of a token, which is a string or an object with its content. Raises ModelFormatError."""
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str) or not text or not _is_utf8(text):
            raise self.error(what, "a token: a string, or an object with its content", f"{token!r:.80}")
        return text

    def error(self, what: str, expected: str, found: object) -> ModelFormatError:
        """To be raised."""
        return ModelFormatError(f"{self.path}: {what}: expected {expected}, found {found}")


def _is_utf8(text: str) -> bool:
    """JSON may spell out half a surrogate pair, which no tokenizer takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
