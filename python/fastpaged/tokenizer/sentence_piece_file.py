"""Reads tokenizer.model: a SentencePiece model, which is a protocol buffer.

Only what encoding depends on is read; the numbers below are fields of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer.json_file import read_bytes
from fastpaged.tokenizer.sentence_piece import PieceType, SentencePieceVocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3  # of the model
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _SPACE_AS_SUFFIX, _BOS_ID, _EOS_ID = 3, 24, 41, 42  # of the trainer
_CHARACTER_MAP, _ADDS_SPACE, _TRIMS_SPACES, _ESCAPES_SPACES = 2, 3, 4, 5  # of the normalizer
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SentencePieceModel:
    """A vocabulary, and the ids that it was trained to begin and end sequences with."""

    vocabulary: SentencePieceVocabulary
    bos_token_id: int | None
    eos_token_id: int | None


def is_sentence_piece_model(path: Path) -> bool:
    """Whether the file begins as a SentencePiece model does: with a piece. Others of its name are lists in text."""
    return (read_bytes(path) or b"")[:1] == bytes([_PIECE << 3 | _BYTES])


def read_sentence_piece_model(path: Path) -> SentencePieceModel:
    """Raises ModelFormatError for what is no SentencePiece model, and for models of words or characters."""
    try:
        return _read(read_bytes(path) or b"", str(path))
    except (IndexError, struct.error, UnicodeDecodeError, _NoMessageError) as error:
        raise ModelFormatError(f"{path}: expected a SentencePiece model, found a damaged one: {error}") from None


class _NoMessageError(Exception):
    pass


def _read(content: bytes, source: str) -> SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(content):
        if field == _PIECE:
            pieces.append(_piece(_message(value)))
        elif field == _TRAINER:
            trainer.update(_message(value))
        elif field == _NORMALIZER:
            normalizer.update(_message(value))
    if not pieces:
        raise _NoMessageError("it has no pieces")
    model_type = _MODEL_TYPES.get(trainer.get(_MODEL_TYPE, 1))
    if model_type not in ("unigram", "bpe"):
        raise ModelFormatError(f"{source}: model_type: expected unigram or bpe, found {model_type or 'an unknown one'}")
    if trainer.get(_SPACE_AS_SUFFIX, 0) or not normalizer.get(_ESCAPES_SPACES, 1):
        raise ModelFormatError(f"{source}: expected spaces that become ▁ before a word, found another treatment")
    texts, scores, types = zip(*pieces, strict=True)
    vocabulary = SentencePieceVocabulary(
        source=source,
        pieces=list(texts),
        scores=np.array(scores, dtype=np.float32),
        types=np.array(types, dtype=np.int32),
        is_unigram=model_type == "unigram",
        adds_space=bool(normalizer.get(_ADDS_SPACE, 1)),
        trims_spaces=bool(normalizer.get(_TRIMS_SPACES, 1)),
        character_map=_of_type(normalizer.get(_CHARACTER_MAP, b""), bytes),
    )
    bos, eos = (_token_id(trainer.get(field, default), len(pieces)) for field, default in ((_BOS_ID, 1), (_EOS_ID, 2)))
    return SentencePieceModel(vocabulary, bos, eos)


def _piece(fields: dict[int, Any]) -> tuple[str, float, int]:
    text = _of_type(fields.get(_PIECE_TEXT, b""), bytes).decode("utf-8")
    kind = _of_type(fields.get(_PIECE_TYPE, int(PieceType.NORMAL)), int)
    if not 0 < kind < 2**31:
        raise _NoMessageError(f"a piece of type {kind}")
    return text, _of_type(fields.get(_PIECE_SCORE, 0.0), float), kind


def _token_id(value: int, num_pieces: int) -> int | None:
    """-1, for none, is written as 2^64 - 1."""
    return value if value < num_pieces else None


def _message(value: object) -> dict[int, Any]:
    return dict(_fields(_of_type(value, bytes)))


def _of_type(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise _NoMessageError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value): int of a varint, float of four bytes, bytes of everything else."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
        elif wire_type == _FIXED32:
            yield tag >> 3, struct.unpack_from("<f", content, at)[0]
            at += 4
        elif wire_type in (_BYTES, _FIXED64):
            size, at = _varint(content, at) if wire_type == _BYTES else (8, at)
            if at + size > len(content):
                raise _NoMessageError("it ends within a value")
            yield tag >> 3, content[at : at + size]
            at += size
        else:
            raise _NoMessageError(f"a value of wire type {wire_type}")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _NoMessageError("a number of more than 64 bits")
