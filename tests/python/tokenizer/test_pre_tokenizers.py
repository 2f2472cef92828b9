"""How text is cut before BPE, by the names of GGUF files, against cuts made by hand from the families' definitions."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizer.strings import strings
from tokenizers import decoders, models, normalizers

from fastpaged.tokenizer.pre_tokenizers import PRE_TOKENIZERS

TEXT = "It's I'LL 12345 HelloWorld a/b\n\n  x"
CUTS = {
    "default": "It|'|s| I|'|LL| |123|45| HelloWorld| a|/|b|\n\n | x",
    "gpt-2": "It|'s| I|'|LL| 12345| HelloWorld| a|/|b|\n\n | x",
    "smollm": "It|'s| I|'|LL| |1|2|3|4|5| HelloWorld| a|/|b|\n\n | x",
    "llama-bpe": "It|'s| I|'LL| |123|45| HelloWorld| a|/b|\n\n| | x",
    "qwen2": "It|'s| I|'LL| |1|2|3|4|5| HelloWorld| a|/b|\n\n| | x",
    "falcon": "It|'|s| I|'|LL| |123|45| HelloWorld| a|/|b|\n\n | x",
    "deepseek-coder": "It|'|s| I|'|LL| |1|2|3|4|5| HelloWorld| a|/|b|\n|\n| | x",
    "gpt-4o": "It's| I'LL| |123|45| Hello|World| a|/b|\n\n| | x",
    "tekken": "It|'s| I|'LL| |1|2|3|4|5| Hello|World| a|/b|\n\n| | x",
}
SAME = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "dbrx": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "olmo": "gpt-2",
    "mpt": "gpt-2",
}
COMPOSING = ("qwen2", "deepseek-r1-qwen", "olmo", "mpt")


def cut(name: str, text: str) -> list[str]:
    backend = tokenizers.Tokenizer(models.BPE())
    PRE_TOKENIZERS[name].apply(backend)
    assert backend.pre_tokenizer is not None
    normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    pieces = backend.pre_tokenizer.pre_tokenize_str(normalized)
    return [decoders.ByteLevel().decode([piece]) for piece, _ in pieces]


@pytest.mark.parametrize("name", CUTS)
def test_a_text_is_cut_as_the_family_cuts_it(name: str) -> None:
    assert "|".join(cut(name, TEXT)) == CUTS[name]


@pytest.mark.parametrize("name", SAME)
def test_names_of_one_cut_cut_alike(name: str) -> None:
    for text in strings(seed=51, count=300):
        composed = normalizers.NFC().normalize_str(text) if name in COMPOSING else text
        assert cut(name, text) == cut(SAME[name], composed)


def test_every_name_is_tested() -> None:
    assert {*CUTS, *SAME} == set(PRE_TOKENIZERS)


def test_deepseek_coder_parts_cjk_from_other_letters_and_line_ends_from_all() -> None:
    assert cut("deepseek-coder", "ab你好cd 한글x\t!?1١") == ["ab", "你好", "cd", " ", "한글", "x", "\t!?", "1", "١"]
    assert cut("deepseek-coder", "  a\r\nкот += 。") == [" ", " a", "\r", "\n", "кот", " +=", " ", "。"]


def test_signs_beyond_ascii_part_a_text_as_punctuation_or_symbols() -> None:
    assert cut("falcon", "a—b $1€") == ["a", "—", "b", " ", "$", "1", "€"]
    assert cut("default", "a—b <1€") == ["a", "—", "b", " ", "<", "1", "€"]
    assert cut("gpt-4o", "éCole МирЖ 你A/\n") == ["é", "Cole", " Мир", "Ж", " 你", "A", "/\n"]


def test_qwen_and_neox_compose_characters_first() -> None:
    for name in PRE_TOKENIZERS:
        assert ("".join(cut(name, "cafe\u0301")) == "café") == (name in COMPOSING)
