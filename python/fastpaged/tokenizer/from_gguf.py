"""A byte-level BPE tokenizer from a GGUF file's metadata."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer.definition import TokenizerDefinition, frame_with
from fastpaged.tokenizer.failures import library_failures
from fastpaged.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

_CONTROL = 3  # token types
_USER_DEFINED = 4
_MODEL = "gpt2"  # byte-level BPE, in llama.cpp's words
_ENDS_OF_SEQUENCE = ("eos", "eot", "eom")  # of sequence, turn, message
_NAMED_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_TEMPLATE = "tokenizer.chat_template"


def tokenizer_from_gguf(metadata: Mapping[str, object], source: str) -> TokenizerDefinition:
    """`metadata` as GgufFile gives it; `source` names the file in errors. Raises ModelFormatError."""
    return _GgufTokenizer(metadata, source).build()


class _GgufTokenizer:
    """Reads the metadata key by key; every complaint names the file and the key."""

    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self.metadata = metadata
        self.source = source

    def build(self) -> TokenizerDefinition:
        model = self.required("tokenizer.ggml.model", str)
        if model != _MODEL:
            raise self.error("tokenizer.ggml.model", f"{_MODEL!r} (byte-level BPE)", repr(model))
        pre = self.pre_tokenizer()
        tokens = self.tokens()
        backend = tokenizers.Tokenizer(self.bpe(tokens, pre))
        pre.apply(backend)
        backend.decoder = decoders.ByteLevel()
        self.add_tokens(backend, tokens)
        bos, eos = self.token_id("bos", tokens), self.token_id("eos", tokens)
        adds_bos = self.optional("tokenizer.ggml.add_bos_token", bool, pre.adds_bos)
        adds_eos = self.optional("tokenizer.ggml.add_eos_token", bool, False)
        frame_with(backend, bos if adds_bos else None, eos if adds_eos else None)
        ends = (self.token_id(name, tokens) for name in _ENDS_OF_SEQUENCE)
        named = {name: self.token_id(key, tokens) for name, key in _NAMED_TOKENS.items()}
        return TokenizerDefinition(
            source=self.source,
            backend=backend,
            bos_token_id=bos,
            eos_token_ids=frozenset(end for end in ends if end is not None),
            special_tokens={name: tokens[token_id] for name, token_id in named.items() if token_id is not None},
            chat_templates=self.chat_templates(),
        )

    def pre_tokenizer(self) -> PreTokenizer:
        name = self.required("tokenizer.ggml.pre", str)
        if name not in PRE_TOKENIZERS:
            raise self.error("tokenizer.ggml.pre", f"one of {', '.join(PRE_TOKENIZERS)}", repr(name)[:80])
        return PRE_TOKENIZERS[name]

    def tokens(self) -> list[str]:
        key = "tokenizer.ggml.tokens"
        tokens = self.strings(key)
        if not tokens:
            raise self.error(key, "at least one token", "none")
        if len(set(tokens)) != len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise self.error(key, "every token once", f"{twice[:80]!r} twice")
        return tokens

    def bpe(self, tokens: list[str], pre: PreTokenizer) -> models.BPE:
        key = "tokenizer.ggml.merges"
        merges: list[tuple[str, str]] = []
        for merge in self.strings(key):
            left, space, right = merge.partition(" ")
            if not (left and space and right) or " " in right:
                raise self.error(f"{key}[{len(merges)}]", "two tokens with a space between", repr(merge)[:80])
            merges.append((left, right))
        vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
        with library_failures(
            f"{self.source}: metadata {key}: expected pairs of tokens whose union is a token, found "
        ):
            return models.BPE(vocabulary, merges, ignore_merges=pre.ignores_merges)

    def add_tokens(self, backend: tokenizers.Tokenizer, tokens: list[str]) -> None:
        """Control and user-defined tokens are found in text as a whole, before the text is cut."""
        key = "tokenizer.ggml.token_type"
        types = self.optional(key, np.ndarray, None)
        if types is None:
            return
        if len(types) != len(tokens) or types.dtype.kind not in "iu":
            raise self.error(key, f"{len(tokens)} integers, one a token", f"{len(types)} of {types.dtype}")
        for token_type, add in ((_CONTROL, backend.add_special_tokens), (_USER_DEFINED, backend.add_tokens)):
            ids = np.flatnonzero(types == token_type)
            special = token_type == _CONTROL
            add([AddedToken(tokens[i], normalized=False, special=special) for i in ids if tokens[i]])

    def chat_templates(self) -> dict[str, str]:
        return {
            key.removeprefix(_TEMPLATE).removeprefix(".") or "default": self.required(key, str)
            for key in self.metadata
            if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
        }

    def token_id(self, name: str, tokens: list[str]) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = self.optional(key, int, None)
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise self.error(key, f"a token id below {len(tokens)}", token_id)
        return token_id

    def strings(self, key: str) -> list[str]:
        strings = self.required(key, list)
        if not all(type(item) is str for item in strings):
            raise self.error(key, "an array of strings", "an array of arrays")
        return strings

    def required(self, key: str, kind: type[T]) -> T:
        if key not in self.metadata:
            raise self.error(key, f"a value of type {kind.__name__}", "no such key")
        value = self.metadata[key]
        if type(value) is not kind:
            raise self.error(key, f"a value of type {kind.__name__}", f"{type(value).__name__} {value!r:.80}")
        return value

    def optional(self, key: str, kind: type[T], default: T | None) -> T | None:
        return self.required(key, kind) if key in self.metadata else default

    def error(self, what: str, expected: str, found: object) -> ModelFormatError:
        return ModelFormatError(f"{self.source}: metadata {what}: expected {expected}, found {found}")
