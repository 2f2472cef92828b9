"""The flat arrays of a step, written by hand: any tokens of any sequences, and every row sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StepArrays:
    """As a core Batch has them."""

    token_ids: Ints
    positions: Ints
    slot_mapping: Ints
    query_start: Ints
    context_lens: Ints
    block_tables: Ints
    sample_rows: Ints


@dataclass(frozen=True)
class Chunk:
    """Tokens [begin, end) of a sequence."""

    sequence: int
    begin: int
    end: int


def block_tables(lengths: list[int], block_size: int, seed: int) -> tuple[Ints, int]:
    """Blocks dealt at random, -1 behind a sequence's own; and how many blocks there are, two left over."""
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = sum(counts) + 2
    free = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
    tables = np.full((len(lengths), max(counts)), -1, np.int32)
    for row, count in zip(tables, counts, strict=True):
        row[:count], free = free[:count], free[count:]
    return tables, num_blocks


def step_arrays(chunks: list[Chunk], sequences: list[list[int]], tables: Ints, block_size: int) -> StepArrays:
    """tables: of all sequences."""
    positions = np.concatenate([np.arange(chunk.begin, chunk.end) for chunk in chunks])
    rows = np.concatenate([np.full(chunk.end - chunk.begin, chunk.sequence) for chunk in chunks])
    return StepArrays(
        token_ids=np.array([sequences[row][at] for row, at in zip(rows, positions, strict=True)], np.int32),
        positions=positions.astype(np.int32),
        slot_mapping=(tables[rows, positions // block_size] * block_size + positions % block_size).astype(np.int32),
        query_start=np.cumsum([0] + [chunk.end - chunk.begin for chunk in chunks]).astype(np.int32),
        context_lens=np.array([chunk.end for chunk in chunks], np.int32),
        block_tables=tables[[chunk.sequence for chunk in chunks]],
        sample_rows=np.arange(len(positions), dtype=np.int32),
    )


def two_chunks_then_decode(lengths: list[int], num_decodes: int = 3) -> list[list[Chunk]]:
    """Steps over all positions: half of each sequence, all but its last tokens, and these one by one."""
    ends = [0] * len(lengths)
    steps = []
    for share in ("half", "most", *["one"] * num_decodes):
        chunks = []
        for i, length in enumerate(lengths):
            prompt = max(1, length - num_decodes)
            end = {"half": -(-prompt // 2), "most": prompt, "one": min(length, ends[i] + 1)}[share]
            if end > ends[i]:
                chunks.append(Chunk(i, ends[i], end))
                ends[i] = end
        steps.append(chunks)
    assert ends == lengths
    return [chunks for chunks in steps if chunks]
