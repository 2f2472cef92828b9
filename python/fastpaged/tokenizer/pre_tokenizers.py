"""How text is cut before BPE, by the name that GGUF files give in `tokenizer.ggml.pre`.

A vocabulary's merges were learned on pieces cut in one certain way; with another cut the ids are plausible and wrong,
so a name that is not in the table is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import normalizers, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable

_LETTERS_AND_THREE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LETTERS_AND_ONE_DIGIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """cut: makes the pre-tokenizer. adds_bos: where the file does not say. ignores_merges: a piece that is a token of
    the vocabulary is taken whole, whatever the merges would make of it."""

    cut: Callable[[], pre_tokenizers.PreTokenizer]
    composes_unicode: bool = False  # NFC first
    adds_bos: bool = False
    ignores_merges: bool = False

    def apply(self, backend: tokenizers.Tokenizer) -> None:
        """Makes `backend` cut text this way."""
        backend.pre_tokenizer = self.cut()
        if self.composes_unicode:
            backend.normalizer = normalizers.NFC()


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(_gpt2),
    "smollm": PreTokenizer(_smollm),
    "llama-bpe": PreTokenizer(lambda: _split(_LETTERS_AND_THREE_DIGITS), adds_bos=True, ignores_merges=True),
    "qwen2": PreTokenizer(lambda: _split(_LETTERS_AND_ONE_DIGIT), composes_unicode=True),
}
