"""SentencePiece vocabularies (Llama 2, Mistral, Gemma, Phi-3) as pipelines of the `tokenizers` library.

SentencePiece keeps a score for every piece and merges, again and again, the two neighbours whose union scores highest,
the leftmost of equals. The library keeps a list of merges and takes the first listed. Both choose alike if the list is
in the order of falling scores, for BPE as SentencePiece trains it: no two pieces score alike, and a piece scores below
its parts. Then all merges within a stretch of text that becomes one piece come before the one that makes it, in an
order that does not depend on the text around. So the last two parts are always the same two, and of the several lines
of the list that would make that piece only one is ever used: their order among themselves is nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer.failures import library_failures

if TYPE_CHECKING:
    import numpy.typing as npt

_SPACE = "▁"


class PieceType(IntEnum):
    """What a piece is, by SentencePiece's numbers, which GGUF files use too."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SentencePieceVocabulary:
    """Everything that SentencePiece's encoding depends on.

    pieces, scores, types: by id; float[num_pieces], int[num_pieces].
    is_unigram: the unigram model; else BPE.
    adds_space: a space is put before every run of text between special tokens (none before an empty one).
    trims_spaces: spaces at both ends are dropped, and runs of them made one.
    character_map: SentencePiece's compiled normalisation rules; empty for none.
    source: the file, for error messages.
    """

    source: str
    pieces: list[str]
    scores: npt.NDArray[np.floating[Any]]
    types: npt.NDArray[np.integer[Any]]
    is_unigram: bool = False
    adds_space: bool = True
    trims_spaces: bool = False
    character_map: bytes = b""

    def backend(self) -> tokenizers.Tokenizer:
        """The pipeline. Raises ModelFormatError."""
        self._check()
        with library_failures(f"{self.source}: expected a SentencePiece vocabulary, found "):
            backend = tokenizers.Tokenizer(self._unigram() if self.is_unigram else self._bpe())
            backend.normalizer = self._normalizer()
            backend.decoder = self._decoder()
        self._add_tokens(backend)
        return backend

    @cached_property
    def _texts(self) -> list[str]:
        """The pieces; a user-defined one has spaces for ▁, so that it may be found in text as it is."""
        texts = list(self.pieces)
        for token_id in self._ids(PieceType.USER_DEFINED):
            texts[token_id] = texts[token_id].replace(_SPACE, " ")
        return texts

    def _check(self) -> None:
        if len(set(self._texts)) != len(self._texts):
            twice = next(text for text, count in Counter(self._texts).items() if count > 1)
            raise ModelFormatError(f"{self.source}: pieces: expected every one once, found {twice[:80]!r} twice")

    def _bpe(self) -> models.BPE:
        texts, unknown = self._texts, self._unknown()
        return models.BPE(
            {text: token_id for token_id, text in enumerate(texts)},
            self._merges(),
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=self._has_bytes,
        )

    def _unigram(self) -> models.Unigram:
        # Only normal and user-defined pieces compete for text; the others need ids, and the score of the worst.
        scores = self.scores.astype(np.float64)
        normal = scores[self._ids(PieceType.NORMAL)]
        worst = float(normal.min()) if len(normal) else 0.0
        competes = np.isin(self.types, (PieceType.NORMAL, PieceType.USER_DEFINED))
        scored = list(zip(self._texts, np.where(competes, scores, worst).tolist(), strict=True))
        return models.Unigram(scored, unk_id=self._unknown(), byte_fallback=self._has_bytes)

    def _merges(self) -> list[tuple[str, str]]:
        ids = self._ids(PieceType.NORMAL)
        by_score = ids[np.argsort(-self.scores[ids], kind="stable")]
        mergeable = {self.pieces[token_id] for token_id in ids}
        return [
            (piece[:at], piece[at:])
            for piece in (self.pieces[token_id] for token_id in by_score.tolist())
            for at in range(1, len(piece))
            if piece[:at] in mergeable and piece[at:] in mergeable
        ]

    def _normalizer(self) -> normalizers.Normalizer:
        steps: list[normalizers.Normalizer] = []
        if self.character_map:
            steps.append(normalizers.Precompiled(self.character_map))
        if self.trims_spaces:
            steps.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
            steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
        if self.adds_space:
            steps.append(normalizers.Prepend(_SPACE))
        return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])

    def _decoder(self) -> decoders.Decoder:
        bytes_to_text = [decoders.ByteFallback()] if self._has_bytes else []
        added_space = [decoders.Strip(" ", 1, 0)] if self.adds_space else []
        return decoders.Sequence([decoders.Replace(_SPACE, " "), *bytes_to_text, decoders.Fuse(), *added_space])

    def _add_tokens(self, backend: tokenizers.Tokenizer) -> None:
        """Control, unknown and user-defined pieces are found in text as a whole; only user-defined ones are text.

        SentencePiece looks for these where spaces are ▁ already. The library does so with nothing else to be done to a
        text before, because it does that to the tokens too: a space before each, runs of spaces made one.
        """
        special = np.flatnonzero(np.isin(self.types, (PieceType.CONTROL, PieceType.UNKNOWN)))
        backend.add_special_tokens([self._token(i, special=True, normalized=False) for i in special if self._texts[i]])
        defined = self._ids(PieceType.USER_DEFINED)
        normalized = not (self.adds_space or self.trims_spaces or self.character_map)
        backend.add_tokens([self._token(i, special=False, normalized=normalized) for i in defined if self._texts[i]])

    def _token(self, token_id: np.intp, *, special: bool, normalized: bool) -> AddedToken:
        return AddedToken(self._texts[token_id], special=special, normalized=normalized)

    def _ids(self, kind: PieceType) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self.types == kind)

    def _unknown(self) -> int | None:
        return next((int(token_id) for token_id in self._ids(PieceType.UNKNOWN)), None)

    @property
    def _has_bytes(self) -> bool:
        return bool(len(self._ids(PieceType.BYTE)))
