"""Paged attention against plain softmax, and against itself: the bits of a query depend on its own keys alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from op_arrays import NAN_BITS, Bits, assert_bfloat16_close, assert_same_bits, random_bfloat16, to_float

from fastpaged import _core


@dataclass(frozen=True)
class Sequence:
    """The q, k and v of every position: [L, heads, D]."""

    q: Bits
    k: Bits
    v: Bits

    @property
    def length(self) -> int:
        return len(self.q)


def random_sequence(
    rng: np.random.Generator, length: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> Sequence:
    return Sequence(
        random_bfloat16(rng, length, num_heads, head_dim, scale=2.0),
        random_bfloat16(rng, length, num_kv_heads, head_dim, scale=2.0),
        random_bfloat16(rng, length, num_kv_heads, head_dim),
    )


@dataclass(frozen=True)
class Chunk:
    """Queries [begin, end) of a sequence; only the keys up to end are in the cache."""

    sequence: Sequence
    begin: int
    end: int


def attend(device: _core.CpuDevice, chunks: list[Chunk], block_size: int, seed: int = 0) -> list[Bits]:
    """One call for all chunks. Blocks are dealt at random; every slot without a key, and another layer, holds NaN."""
    num_kv_heads, head_dim = chunks[0].sequence.k.shape[1:]
    counts = [-(-chunk.end // block_size) for chunk in chunks]
    num_blocks = sum(counts) + 3
    cache = np.full((num_blocks, 2, 2, num_kv_heads, block_size, head_dim), NAN_BITS, np.uint16)
    free = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
    tables = np.full((len(chunks), max(counts) + 1), -1, np.int32)
    for i, chunk in enumerate(chunks):
        blocks, free = free[: counts[i]], free[counts[i] :]
        tables[i, : counts[i]] = blocks
        positions = np.arange(chunk.end)
        block, offset = blocks[positions // block_size], positions % block_size
        cache[block, 1, 0, :, offset] = chunk.sequence.k[: chunk.end]
        cache[block, 1, 1, :, offset] = chunk.sequence.v[: chunk.end]
    q = np.concatenate([chunk.sequence.q[chunk.begin : chunk.end] for chunk in chunks])
    query_start = np.cumsum([0] + [chunk.end - chunk.begin for chunk in chunks]).astype(np.int32)
    context_lens = np.array([chunk.end for chunk in chunks], np.int32)
    out = np.zeros((q.shape[0], q.shape[1] * head_dim), np.uint16)
    _core.paged_attention(device, q, cache[:, 1], query_start, context_lens, tables, head_dim**-0.5, out)
    return np.split(out, query_start[1:-1])


def softmax_attention(chunk: Chunk) -> npt.NDArray[np.float64]:
    sequence = chunk.sequence
    q = to_float(sequence.q).astype(np.float64)[chunk.begin : chunk.end]
    group = sequence.q.shape[1] // sequence.k.shape[1]
    k = np.repeat(to_float(sequence.k).astype(np.float64), group, axis=1)[: chunk.end]
    v = np.repeat(to_float(sequence.v).astype(np.float64), group, axis=1)[: chunk.end]
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    future = np.arange(chunk.end)[None, :] > np.arange(chunk.begin, chunk.end)[:, None]
    scores[:, future] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    mixed: npt.NDArray[np.float64] = np.einsum("hqk,khd->qhd", weights, v)
    return mixed.reshape(chunk.end - chunk.begin, -1)


# (query heads, KV heads, head size, block size)
SHAPES = [
    (9, 3, 64, 16),
    (8, 8, 64, 128),
    (8, 1, 128, 16),
    (2, 1, 16, 1),
    (3, 3, 32, 3),
    (8, 1, 48, 256),
    (4, 2, 80, 16),
    (1, 1, 112, 7),
    (3, 1, 256, 16),
    (60, 1, 16, 16),
]


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size"), SHAPES)
def test_attention_is_softmax_attention_over_a_mixed_batch(
    device: _core.CpuDevice,
    rng: np.random.Generator,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    """Whole prompts, chunks of prompts and decodes, with contexts from one token to several spans."""
    spans = [(0, 1), (0, 40), (37, 38), (16, 32), (250, 260), (255, 256), (256, 257), (500, 530), (599, 600), (0, 17)]
    sequences = [random_sequence(rng, 600, num_heads, num_kv_heads, head_dim) for _ in spans]
    chunks = [Chunk(sequence, begin, end) for sequence, (begin, end) in zip(sequences, spans, strict=True)]
    for got, chunk in zip(attend(device, chunks, block_size), chunks, strict=True):
        assert_bfloat16_close(got, softmax_attention(chunk), slack=1e-4)


@pytest.fixture(params=[(9, 3, 64), (4, 4, 16), (8, 1, 48)], ids=str)
def sequence(request: pytest.FixtureRequest, rng: np.random.Generator) -> Sequence:
    return random_sequence(rng, 560, *request.param)


def whole(device: _core.CpuDevice, sequence: Sequence, block_size: int = 16) -> Bits:
    return attend(device, [Chunk(sequence, 0, sequence.length)], block_size)[0]


@pytest.mark.parametrize("chunk_size", [1, 7, 64, 300])
def test_the_chunking_of_a_prompt_changes_no_bit(device: _core.CpuDevice, sequence: Sequence, chunk_size: int) -> None:
    """Chunks of one are decoding: keys are the same whether they come with the query or long before it."""
    pieces = []
    for begin in range(0, sequence.length, chunk_size):
        end = min(sequence.length, begin + chunk_size)
        pieces += attend(device, [Chunk(sequence, begin, end)], 16, seed=begin)
    assert_same_bits(np.concatenate(pieces), whole(device, sequence))


@pytest.mark.parametrize("block_size", [1, 3, 128, 256])
def test_the_block_size_changes_no_bit(device: _core.CpuDevice, sequence: Sequence, block_size: int) -> None:
    assert_same_bits(whole(device, sequence, block_size), whole(device, sequence, 16))


def test_the_number_of_threads_changes_no_bit(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, sequence: Sequence
) -> None:
    assert_same_bits(whole(one_thread, sequence), whole(device, sequence))


def test_neighbours_in_the_batch_change_no_bit(
    device: _core.CpuDevice, rng: np.random.Generator, sequence: Sequence
) -> None:
    """Many of them, so that work is cut another way than for one sequence; some are NaN throughout."""
    num_heads, num_kv_heads, head_dim = sequence.q.shape[1], *sequence.k.shape[1:]
    alone = whole(device, sequence)
    others = [random_sequence(rng, 300, num_heads, num_kv_heads, head_dim) for _ in range(6)]
    nan = Sequence(*(np.full_like(array, NAN_BITS) for array in (others[0].q, others[0].k, others[0].v)))
    batch = [Chunk(nan, 0, 40), Chunk(sequence, 300, 560), Chunk(nan, 299, 300)]
    batch += [Chunk(other, begin, begin + 1) for other in others for begin in range(250, 300)]
    batch += [Chunk(sequence, 559, 560), Chunk(nan, 17, 64), Chunk(sequence, 0, 33)]
    got = attend(device, batch, 16)
    assert_same_bits(got[1], alone[300:560])
    assert_same_bits(got[-3], alone[559:])
    assert_same_bits(got[-1], alone[:33])
    assert (to_float(got[0]) != to_float(got[0])).all()


def test_nan_in_one_query_head_stays_there(device: _core.CpuDevice, sequence: Sequence) -> None:
    """Heads of a group share the keys that are read."""
    alone = whole(device, sequence)
    q = sequence.q.copy()
    q[5::9, 1] = NAN_BITS
    got = whole(device, Sequence(q, sequence.k, sequence.v)).reshape(q.shape)
    want = alone.reshape(q.shape).copy()
    assert np.isnan(to_float(got[5::9, 1])).all()
    got[5::9, 1] = want[5::9, 1]
    assert_same_bits(got, want)


def test_large_scores_do_not_overflow(device: _core.CpuDevice, rng: np.random.Generator) -> None:
    sequence = random_sequence(rng, 300, 2, 1, 64)
    loud = Sequence(sequence.q + np.uint16(6 << 7), sequence.k + np.uint16(6 << 7), sequence.v)  # times 2^6 each
    chunk = Chunk(loud, 0, 300)
    assert_bfloat16_close(attend(device, [chunk], 16)[0], softmax_attention(chunk), slack=2e-2)


def test_bad_arguments_are_named(device: _core.CpuDevice) -> None:
    cache = np.zeros((4, 2, 1, 16, 32), np.uint16)
    q, out = np.zeros((2, 3, 32), np.uint16), np.zeros((2, 96), np.uint16)
    start, tables = np.array([0, 1, 2], np.int32), np.zeros((2, 2), np.int32)

    def run(**changed: npt.NDArray[np.generic]) -> None:
        arguments = {"q": q, "kv_cache": cache, "query_start": start, "context_lens": np.array([32, 1], np.int32)}
        arguments |= {"block_tables": tables, "out": out}
        _core.paged_attention(device, scale=1.0, **(arguments | changed))  # type: ignore[arg-type]

    run()
    with pytest.raises(ValueError, match=r"context_lens\[0\] must be in 1\.\.32, got 33"):
        run(context_lens=np.array([33, 1], np.int32))
    with pytest.raises(ValueError, match=r"block_tables must be in 0\.\.3, got 4"):
        run(block_tables=tables + 4)
    with pytest.raises(ValueError, match="query_start must run from 0 to T=2, got 0 to 1"):
        run(query_start=np.array([0, 1, 1], np.int32))
    with pytest.raises(ValueError, match="Hq must be a multiple of Hkv=2, got 3"):
        run(kv_cache=np.zeros((4, 2, 2, 16, 32), np.uint16))
    with pytest.raises(ValueError, match="D must be a multiple of 16, got 24"):
        run(kv_cache=np.zeros((4, 2, 1, 16, 24), np.uint16), q=np.zeros((2, 3, 24), np.uint16))
    with pytest.raises(ValueError, match=r"block_size must be in 1\.\.256, got 257"):
        run(kv_cache=np.zeros((4, 2, 1, 257, 32), np.uint16))
    with pytest.raises(ValueError, match="kv_cache must be contiguous along its last axis"):
        run(kv_cache=np.zeros((4, 2, 1, 16, 64), np.uint16)[..., ::2])
