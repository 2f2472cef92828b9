"""A language model small enough to be obvious: the next token is a hash of the whole context, read back through the
block tables as a real model reads its keys and values, and of the branch that asks, so that branches part at once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fastpaged._core import Batch

VOCAB_SIZE = 40
_NOTHING = -1


def next_token(context: Sequence[int], sequence_id: int) -> int:
    return zlib.crc32(bytes(context) + sequence_id.to_bytes(8, "little")) % VOCAB_SIZE


class ToyModel:
    """Its memory: [num_blocks, block_size, 2] of (token, position) in each tier."""

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int) -> None:
        self._block_size = block_size
        self._device = np.full((num_blocks, block_size, 2), _NOTHING)
        self._host = np.full((num_host_blocks, block_size, 2), _NOTHING)

    def copy(self, copies: Sequence[tuple[str, int, int, int]]) -> None:
        """A plan's copies, in order. A block is copied for the tokens in it: it holds one at least."""
        tiers = {
            "swap_out": (self._device, self._host),
            "swap_in": (self._host, self._device),
            "copy_on_write": (self._device, self._device),
        }
        for kind, source, destination, num_blocks in copies:
            read, written = tiers[kind]
            assert num_blocks > 0
            assert 0 <= source <= len(read) - num_blocks, (kind, source, num_blocks)
            assert 0 <= destination <= len(written) - num_blocks, (kind, destination, num_blocks)
            assert read is not written or abs(source - destination) >= num_blocks, "a copy overlaps itself"
            blocks = read[source : source + num_blocks].copy()
            assert (blocks[:, 0] != _NOTHING).all(), f"{kind} of {num_blocks} blocks from {source}: one holds nothing"
            written[destination : destination + num_blocks] = blocks

    def poison(self, free_blocks: npt.NDArray[np.int32], free_host_blocks: npt.NDArray[np.int32]) -> None:
        """What free blocks hold must not matter."""
        self._device[free_blocks] = _NOTHING
        self._host[free_host_blocks] = _NOTHING

    def run(self, batch: Batch, sequence_ids: Sequence[int]) -> list[int]:
        """One token per sampling row. sequence_ids: who each of the batch's sequences is."""
        return [next_token(context, sequence_ids[i]) for i, context in self.compute(batch)]

    def compute(self, batch: Batch) -> list[tuple[int, list[int]]]:
        """Of each sampling row which of the batch's sequences it is, and all its tokens, as the cache has them."""
        assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping)
        self._device.reshape(-1, 2)[batch.slot_mapping] = np.stack([batch.token_ids, batch.positions], axis=1)
        sequences = np.searchsorted(batch.query_start, batch.sample_rows, side="right") - 1
        assert (batch.query_start[sequences + 1] == batch.sample_rows + 1).all()
        return [(i, self._context(batch, i)) for i in sequences.tolist()]

    def _context(self, batch: Batch, sequence: int) -> list[int]:
        positions = np.arange(batch.context_lens[sequence])
        blocks = batch.block_tables[sequence, positions // self._block_size]
        slots = self._device[blocks, positions % self._block_size]
        assert (slots[:, 1] == positions).all(), f"read {slots[:, 1].tolist()} for positions {positions.tolist()}"
        return [int(token) for token in slots[:, 0]]
