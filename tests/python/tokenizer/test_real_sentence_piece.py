"""Real SentencePiece vocabularies out of GGUF files, against `sentencepiece` over the model written back."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from tokenizer.strings import strings

from fastpaged.formats.gguf import GgufFile
from fastpaged.tokenizer import load_tokenizer
from fastpaged.tokenizer.gguf_metadata import TokenizerMetadata


def real_files() -> list[Path | None]:
    return [Path(path) for path in os.environ.get("FASTPAGED_TEST_SPM_GGUF", "").split(os.pathsep) if path] or [None]


@pytest.fixture(scope="module", params=real_files(), ids=lambda path: path.name if path else "none")
def gguf(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("FASTPAGED_TEST_SPM_GGUF: expected paths of GGUF files with SentencePiece vocabularies, found none")
    path: Path = request.param
    return path


@pytest.mark.real_model
def test_a_real_vocabulary_equals_sentencepiece(gguf: Path) -> None:
    with GgufFile.open(gguf) as file:
        keys = TokenizerMetadata(file.metadata, gguf.name)
        oracle = sentencepiece.SentencePieceProcessor(model_proto=model_of(keys))
    tokenizer = load_tokenizer(gguf)
    texts = strings(seed=61, count=5000)
    assert len(set(texts)) > 4000
    special = tokenizer._special_ids
    num_compared = 0
    for text in texts:
        if special.intersection(tokenizer.encode(text, add_special_tokens=False)):
            continue  # SentencePiece does not look for control tokens in text
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text), text
        assert tokenizer.decode(ids) == oracle.decode(ids), text
        num_compared += 1
    assert num_compared >= 4000


def model_of(keys: TokenizerMetadata) -> bytes:
    """tokenizer.model with the vocabulary of a GGUF file."""
    pieces = keys.tokens()
    types = keys.types(len(pieces)).tolist()
    unknown = keys.token_id("unknown", len(pieces), types.index(2) if 2 in types else 0)
    adds_space = keys.optional("tokenizer.ggml.add_space_prefix", bool, True)
    content = bytearray()
    for token_id, (piece, score, kind) in enumerate(zip(pieces, keys.scores(len(pieces)), types, strict=True)):
        kind = 2 if token_id == unknown else 5 if kind == 2 else kind  # there is one; others are padding
        text = piece.replace(" ", "▁") if kind == 4 else piece
        fields = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", np.float32(score)) + _varint(3 << 3, kind)
        content += _bytes(1, fields)
    trainer = _varint(3 << 3, 2) + _varint(35 << 3, 1) + _varint(40 << 3, unknown or 0)  # BPE, bytes, unknown
    normalizer = _bytes(1, b"identity") + _varint(3 << 3, int(adds_space is True)) + _varint(4 << 3, 0)
    return bytes(content) + _bytes(2, trainer) + _bytes(3, normalizer)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2, len(content)) + content


def _varint(*numbers: int) -> bytes:
    written = bytearray()
    for number in numbers:
        while number > 0x7F:
            written.append(number & 0x7F | 0x80)
            number >>= 7
        written.append(number)
    return bytes(written)
