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

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Patterns of the later ones: a contraction's end, a word, digits, signs, spaces.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACES}"
_ONE_DIGIT = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SIGNS_AND_SPACES}"

# The later ones also end a word where small letters are followed by a capital.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHES_AND_SPACES = _SIGNS_AND_SPACES.replace(r"[\r\n]*", r"[\r\n/]*")


def _cased(end: str, digits: str) -> str:
    begin = r"[^\r\n\p{L}\p{N}]?"
    small, capital = f"{begin}{_UPPER}*{_LOWER}+{end}", f"{begin}{_UPPER}+{_LOWER}*{end}"
    return f"{small}|{capital}|{digits}|{_SLASHES_AND_SPACES}"


_TEKKEN = _cased("", r"\p{N}")
_GPT_4O = _cased(f"{_CONTRACTION}?", r"\p{N}{1,3}")


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


def _default() -> pre_tokenizers.PreTokenizer:
    """Of files older than `tokenizer.ggml.pre`: signs, then words, then digits, then these by three."""
    return _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")


def _falcon() -> pre_tokenizers.PreTokenizer:
    threes = pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), behavior="isolated")
    digits = pre_tokenizers.Digits(individual_digits=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Punctuation(behavior="contiguous"), _gpt2(), digits, threes])


def _deepseek_coder() -> pre_tokenizers.PreTokenizer:
    """Line ends, words, signs, runs of CJK within words (U+0800 to U+9FA5, and Hangul), digits one by one."""
    return _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u0800-\u9fa5\uac00-\ud7ff]+", r"\p{N}")


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA_3 = PreTokenizer(lambda: _split(_THREE_DIGITS), adds_bos=True, ignores_merges=True)
_QWEN_2 = PreTokenizer(lambda: _split(_ONE_DIGIT), composes_unicode=True)
_NEOX = PreTokenizer(_gpt2, composes_unicode=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(_default),
    "gpt-2": PreTokenizer(_gpt2),
    "smollm": PreTokenizer(_smollm),
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "falcon": PreTokenizer(_falcon),
    "olmo": _NEOX,  # OLMo's is GPT-NeoX's
    "mpt": _NEOX,
    "deepseek-coder": PreTokenizer(_deepseek_coder),
    "dbrx": PreTokenizer(lambda: _split(_THREE_DIGITS)),  # Phi-4
    "gpt-4o": PreTokenizer(lambda: _split(_GPT_4O)),  # Phi-4-mini
    "tekken": PreTokenizer(lambda: _split(_TEKKEN), adds_bos=True, ignores_merges=True),  # Mistral Nemo
}
