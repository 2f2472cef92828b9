"""SentencePiece vocabularies, from GGUF files and from tokenizer.model, against `sentencepiece` and an obvious model."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer.small_tokenizers import (
    CHATML,
    SENTENCE_PIECE_SYMBOLS,
    trained_sentence_piece,
    write_sentence_piece_gguf,
)
from tokenizer.strings import strings

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer import Tokenizer, load_tokenizer
from fastpaged.tokenizer.sentence_piece import PieceType, SentencePieceVocabulary

LLAMA: dict[str, Any] = {}
GEMMA: dict[str, Any] = {"add_dummy_prefix": False, "user_defined_symbols": ",".join(SENTENCE_PIECE_SYMBOLS)}
NO_BYTES: dict[str, Any] = {"byte_fallback": False, "vocab_size": 700}
TRIMMED: dict[str, Any] = {"remove_extra_whitespaces": True}
MODELS = {"Llama": LLAMA, "Gemma": GEMMA, "no bytes": NO_BYTES, "trimmed": TRIMMED}


def trained(name: str) -> bytes:
    return trained_sentence_piece(**MODELS[name])


def samples(seed: int, count: int) -> list[str]:
    """The test strings, and rows of a few words and signs: what many merges compete for."""
    random_ = random.Random(seed)
    parts = ["a", "aa", "the", "he", " ", "  ", "=", "==", "\n", "\n\n", "...", "<tool>", "12", "é", "世", "😀", "▁"]
    rows = ["".join(random_.choice(parts[:: random_.randint(1, 4)]) for _ in range(24)) for _ in range(count // 2)]
    return strings(seed, count) + rows


def assert_same(tokenizer: Tokenizer, model: bytes, texts: list[str]) -> None:
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text), text
        assert_same_text(tokenizer, oracle, ids)


def assert_same_text(tokenizer: Tokenizer, oracle: sentencepiece.SentencePieceProcessor, ids: list[int]) -> None:
    if oracle.unk_id() not in ids:  # whose text SentencePiece makes up
        assert tokenizer.decode(ids, skip_special_tokens=False) == oracle.decode(ids)


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
def test_a_gguf_file_of_a_sentencepiece_vocabulary_equals_sentencepiece(tmp_path: Path, name: str) -> None:
    symbols = SENTENCE_PIECE_SYMBOLS if name == "Gemma" else ()
    path = write_sentence_piece_gguf(
        tmp_path / "m.gguf", trained(name), symbols, ggml__add_space_prefix=name == "Llama"
    )
    assert_same(load_tokenizer(path), trained(name), samples(21, 2000))


@pytest.mark.parametrize("name", MODELS)
def test_tokenizer_model_equals_sentencepiece(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(name))
    # Where SentencePiece trims, it takes a ▁ that is spelled out for a space too.
    texts = [text for text in samples(22, 1500) if name != "trimmed" or "▁" not in text]
    assert_same(load_tokenizer(tmp_path), trained(name), texts)


def test_the_unigram_model_finds_a_segmentation_as_probable_as_sentencepieces(tmp_path: Path) -> None:
    """Several may be the most probable ones."""
    model = trained_sentence_piece(model_type="unigram", vocab_size=570)
    (tmp_path / "tokenizer.model").write_bytes(model)
    tokenizer, oracle = load_tokenizer(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=model)
    num_equal = 0
    texts = samples(23, 1500)
    for text in texts:
        ids, expected = tokenizer.encode(text, add_special_tokens=False), oracle.encode(text)
        score, expected_score = (sum(oracle.get_score(i) for i in row) for row in (ids, expected))
        assert score == pytest.approx(expected_score, abs=1e-3), text
        assert_same_text(tokenizer, oracle, ids)
        num_equal += ids == expected
    assert num_equal > 0.9 * len(texts)


# ---- against an obvious model


def obvious_bpe(text: str, score_of: dict[str, float]) -> list[str]:
    """SentencePiece's rule as it stands: the best-scored union of neighbours, the leftmost of equals, until none is."""
    pieces = list(text)
    while True:
        unions = [(score_of.get(left + right, -np.inf), -at) for at, (left, right) in enumerate(pairwise(pieces))]
        score, at = max(unions, default=(-np.inf, 0))
        if score == -np.inf:
            return pieces
        pieces[-at : -at + 2] = [pieces[-at] + pieces[-at + 1]]


def vocabulary_of_rows(random_: random.Random) -> list[str]:
    """Pieces of few letters, each the union of two before it: the worst case for merges into the same piece."""
    alphabet = list(random_.choice(["a", "ab", "abc"]))
    pieces = list(alphabet)
    for _ in range(random_.randint(1, 14)):
        union = random_.choice(pieces) + random_.choice(pieces)
        if union not in pieces and len(union) < 9:
            pieces.append(union)
    return pieces


def test_merges_are_chosen_as_scores_choose_them() -> None:
    random_ = random.Random(31)
    num_competing = 0
    for _ in range(400):
        pieces = vocabulary_of_rows(random_)
        score_of = {piece: -float(rank) for rank, piece in enumerate(pieces)}
        backend = SentencePieceVocabulary(
            source="test",
            pieces=["<unk>", *pieces],
            scores=np.array([0.0, *score_of.values()]),
            types=np.array([PieceType.UNKNOWN, *[PieceType.NORMAL] * len(pieces)]),
            adds_space=False,
        ).backend()
        for _ in range(25):
            text = "".join(random_.choice(pieces) for _ in range(random_.randint(0, 9)))
            found = [token for token in backend.encode(text).tokens]
            assert found == obvious_bpe(text, score_of), (text, pieces)
        num_competing += len({p for p in pieces if sum(p.startswith(q) and p[len(q) :] in pieces for q in pieces) > 1})
    assert num_competing > 500
