"""A language model small enough to be obvious: the next token is a hash of the whole context, read back through the
block tables as a real model reads its keys and values."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged._core import Batch

VOCAB_SIZE = 40
_NOTHING = -1


def next_token(context: Sequence[int]) -> int:
    return zlib.crc32(bytes(context)) % VOCAB_SIZE


@dataclass(frozen=True)
class PlainAnswer:
    tokens: list[int]
    reason: str


def answer_plainly(
    prompt: Sequence[int], *, max_tokens: int, stop_token_ids: Sequence[int], max_model_len: int, num_slots: int
) -> PlainAnswer:
    """What a request answers when nothing runs beside it."""
    context = list(prompt)
    while len(context) <= num_slots:
        context.append(next_token(context))
        if context[-1] in stop_token_ids:
            return PlainAnswer(context[len(prompt) :], "STOP")
        if len(context) - len(prompt) == max_tokens or len(context) == max_model_len:
            break
    return PlainAnswer(context[len(prompt) :], "LENGTH")


class ToyModel:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots = np.full((num_blocks * block_size, 2), _NOTHING)  # token, position

    def run(self, batch: Batch, free_blocks: Sequence[int]) -> list[int]:
        """One token per sampling row. What free blocks hold must not matter: it is overwritten first."""
        self._slots.reshape(-1, self._block_size, 2)[free_blocks] = _NOTHING
        assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping)
        self._slots[batch.slot_mapping] = np.stack([batch.token_ids, batch.positions], axis=1)
        sequences = np.searchsorted(batch.query_start, batch.sample_rows, side="right") - 1
        assert (batch.query_start[sequences + 1] == batch.sample_rows + 1).all()
        return [next_token(self._context(batch, int(sequence))) for sequence in sequences]

    def _context(self, batch: Batch, sequence: int) -> list[int]:
        positions = np.arange(batch.context_lens[sequence])
        blocks = batch.block_tables[sequence, positions // self._block_size]
        slots = self._slots[blocks * self._block_size + positions % self._block_size]
        assert (slots[:, 1] == positions).all()
        return [int(token) for token in slots[:, 0]]
