"""SentencePiece vocabularies, of GGUF files and tokenizer.model, against `sentencepiece` and an obvious model."""

from __future__ import annotations

import json
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
from fastpaged.formats.gguf import GgufFile
from fastpaged.tokenizer import Tokenizer, load_tokenizer
from fastpaged.tokenizer.gguf_metadata import TokenizerMetadata
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


# ---- what the file says


def llama_gguf(tmp_path: Path, **metadata: Any) -> Path:
    return write_sentence_piece_gguf(tmp_path / "model.gguf", trained("Llama"), **metadata)


def test_a_llama_file_that_says_nothing_begins_with_bos_and_a_space(tmp_path: Path) -> None:
    silent = {f"ggml__{name}_token_id": None for name in ("bos", "eos", "unknown")}
    tokenizer = load_tokenizer(llama_gguf(tmp_path, **silent))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, frozenset({2}))
    oracle = sentencepiece.SentencePieceProcessor(model_proto=trained("Llama"))
    assert tokenizer.encode("a b") == [1, *oracle.encode("a b")]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("<s>a") == [1, *oracle.encode("a")], "never two"
    assert tokenizer.encode("a</s>b") == [1, *oracle.encode("a"), 2, *oracle.encode("b")]


def test_the_frame_and_the_template_are_what_the_file_says(tmp_path: Path) -> None:
    path = llama_gguf(tmp_path, ggml__add_bos_token=False, ggml__add_eos_token=True, chat_template=CHATML)
    tokenizer = load_tokenizer(path)
    bare = tokenizer.encode("a", add_special_tokens=False)
    assert tokenizer.encode("a") == [*bare, 2]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]).startswith("<|im_start|>user\nHi")


def test_a_byte_that_is_spelled_out_is_no_byte(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(llama_gguf(tmp_path))
    assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"
    assert tokenizer.decode([tokenizer.encode("\x01")[-1]]) == "\x01", "but one that no piece has is a byte's token"


def test_the_unknown_token_is_the_one_the_file_names_whatever_the_types_say(tmp_path: Path) -> None:
    model = trained("no bytes")
    with GgufFile.open(write_sentence_piece_gguf(tmp_path / "model.gguf", model)) as file:
        types = TokenizerMetadata(file.metadata, "test").types(700).tolist()
    assert types[:3] == [2, 3, 3]
    texts = strings(24, 300)
    assert any(0 in sentencepiece.SentencePieceProcessor(model_proto=model).encode(text) for text in texts)
    for changed in ([3, *types[1:]], [3, 3, 2, *types[3:]]):
        path = write_sentence_piece_gguf(tmp_path / "changed.gguf", model, ggml__token_type=changed)
        assert_same(load_tokenizer(path), model, texts)


VOCABULARY_SIZE = 1000
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"ggml__scores": None}, "scores: expected a value of type ndarray, found no such key"),
    "no types": ({"ggml__token_type": None}, "token_type: expected a value of type ndarray, found no such key"),
    "scores of whole numbers": (
        {"ggml__scores": [1] * VOCABULARY_SIZE},
        "scores: expected 1000 floats, one a token, found 1000 of int",
    ),
    "too few scores": ({"ggml__scores": [1.0, 2.0]}, "scores: expected 1000 floats, one a token, found 2 of float"),
    "a space that is a number": ({"ggml__add_space_prefix": 1}, "add_space_prefix: expected a value of type bool"),
    "rules that are floats": (
        {"ggml__precompiled_charsmap": [0.5]},
        "charsmap: expected an array of bytes, found one of",
    ),
    "rules that are none": (
        {"ggml__precompiled_charsmap": b"\1\2\3"},
        "expected a SentencePiece vocabulary, found",
    ),
    "a symbol twice": (
        {"ggml__token_type": [4] * VOCABULARY_SIZE, "ggml__tokens": [*map(str, range(998)), "▁", " "]},
        "pieces: expected every one once, found ' ' twice",
    ),
    "a beginning beyond the vocabulary": (
        {"ggml__bos_token_id": VOCABULARY_SIZE},
        "bos_token_id: expected a token id below 1000, found 1000",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(tmp_path: Path, case: str) -> None:
    metadata, message = REFUSED[case]
    with pytest.raises(ModelFormatError, match=message) as error:
        load_tokenizer(llama_gguf(tmp_path, **metadata))
    assert "model.gguf: " in str(error.value)


def test_tokenizer_model_begins_with_bos_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained("Llama"))
    bare = load_tokenizer(tmp_path).encode("a", add_special_tokens=False)
    assert load_tokenizer(tmp_path).encode("a") == [1, *bare]
    assert load_tokenizer(tmp_path).eos_token_ids == {2}
    write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": False, "add_eos_token": True, "eos_token": "<s>"})
    assert load_tokenizer(tmp_path).encode("a") == [*bare, 1]
    write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": "no"})
    with pytest.raises(ModelFormatError, match="add_bos_token: expected true or false, found 'no'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer_config", "added_tokens"])
def test_tokens_added_to_tokenizer_model_follow_its_own(tmp_path: Path, file: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained("Llama"))
    decoder = {"1000": {"content": "<|end|>", "special": True}, "1001": {"content": "<think>", "special": False}}
    older = {"<|end|>": 1000, "<think>": 1001}
    config = (
        {"added_tokens_decoder": decoder} if file == "tokenizer_config" else {"additional_special_tokens": ["<|end|>"]}
    )
    write_json(tmp_path / "tokenizer_config.json", config)
    write_json(tmp_path / "added_tokens.json", older if file == "added_tokens" else {"<never>": 1000})
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("a<|end|><think>")
    assert (ids[-2:], tokenizer.vocab_size) == ([1000, 1001], 1002)
    assert tokenizer.decode(ids) == "a<think>"


def test_a_declared_run_of_spaces_is_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained("Gemma"))
    two = load_tokenizer(tmp_path).encode("  ", add_special_tokens=False)
    declared = {f"{two[0]}": {"content": "▁▁", "special": False, "normalized": False}}
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": declared})
    assert load_tokenizer(tmp_path).encode("  ", add_special_tokens=False) == two


@pytest.mark.parametrize("kind", ["word", "char"])
def test_models_of_words_and_characters_are_refused(tmp_path: Path, kind: str) -> None:
    model = trained_sentence_piece(model_type=kind, byte_fallback=False, vocab_size=300, hard_vocab_limit=False)
    (tmp_path / "tokenizer.model").write_bytes(model)
    with pytest.raises(ModelFormatError, match=f"tokenizer.model: model_type: expected unigram or bpe, found {kind}"):
        load_tokenizer(tmp_path)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_model_gives_a_tokenizer_or_a_format_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(trained("Gemma"))
    places = st.one_of(
        st.integers(1, 200), st.integers(len(content) - 300, len(content) - 1), st.integers(1, len(content) - 1)
    )
    for position, byte in data.draw(st.dictionaries(places, st.integers(0, 255), min_size=1)).items():
        content[position] = byte
    cut = data.draw(st.one_of(st.none(), st.integers(1, len(content))))
    folder = tmp_path_factory.getbasetemp() / "damaged model"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(content[:cut])
    try:
        tokenizer = load_tokenizer(folder)
    except ModelFormatError:
        return
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in tokenizer.encode("Hello, world! 👩‍👧"))


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


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
            found = list(backend.encode(text).tokens)
            assert found == obvious_bpe(text, score_of), (text, pieces)
        num_competing += len({p for p in pieces if sum(p.startswith(q) and p[len(q) :] in pieces for q in pieces) > 1})
    assert num_competing > 500
