"""Paged attention against plain softmax, and against itself: the bits of a query depend on its own keys alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from attention_cases import (
    NO_RULE,
    Chunk,
    Rule,
    Sequence,
    assert_close,
    attend,
    random_sequence,
    softmax_attention,
)
from isas import EVERY_ISA
from kv_layout import tiled
from op_arrays import Array, Dtype, assert_same_bits, nan_like, values_of

from fastpaged import _core

EVERYTHING = Rule(window=90, soft_cap=3.0, alibi=True)

# (query heads, KV heads, head size, block size, rule)
SHAPES = [
    (9, 3, 64, 16, NO_RULE),
    (8, 8, 64, 128, Rule(window=100)),
    (8, 1, 128, 16, Rule(soft_cap=5.0)),
    (2, 1, 16, 1, EVERYTHING),
    (3, 3, 32, 3, Rule(alibi=True)),
    (8, 1, 48, 256, Rule(window=1)),
    (4, 2, 80, 16, Rule(window=256)),
    (1, 1, 112, 7, Rule(window=257, alibi=True)),
    (3, 1, 256, 16, Rule(window=16, soft_cap=2.0)),
    (60, 1, 16, 16, NO_RULE),
    (71, 1, 64, 16, EVERYTHING),
]


@pytest.fixture(params=EVERY_ISA)
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_size", "rule"), SHAPES)
def test_attention_is_softmax_attention_over_a_mixed_batch(
    device: _core.CpuDevice,
    rng: np.random.Generator,
    dtype: Dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    rule: Rule,
) -> None:
    """Whole prompts, chunks of prompts and decodes, with contexts from one token to several spans."""
    spans = [(0, 1), (0, 40), (37, 38), (16, 32), (250, 260), (255, 256), (256, 257), (500, 530), (599, 600), (0, 17)]
    sequences = [random_sequence(rng, dtype, end, num_heads, num_kv_heads, head_dim) for _, end in spans]
    chunks = [Chunk(sequence, begin, end) for sequence, (begin, end) in zip(sequences, spans, strict=True)]
    for got, chunk in zip(attend(device, chunks, block_size, rule), chunks, strict=True):
        assert_close(got, softmax_attention(chunk, rule))


@pytest.mark.parametrize("head_dim", range(16, 257, 16))
def test_every_head_size_is_served(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, head_dim: int
) -> None:
    chunk = Chunk(random_sequence(rng, dtype, 270, 5, 1, head_dim), 262, 270)
    for rule in (NO_RULE, EVERYTHING):
        assert_close(attend(device, [chunk], 16, rule)[0], softmax_attention(chunk, rule))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 254, 255, 256, 257, 258, 511, 512, 513, 530, 600])
def test_a_window_may_begin_anywhere_in_a_block_and_a_span(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype, window: int
) -> None:
    """Chunks that cross the edges of spans, so that rows computed together see different first and last spans."""
    sequence = random_sequence(rng, dtype, 530, 2, 2, 32)
    rule = Rule(window=window)
    chunks = [Chunk(sequence, begin, end) for begin, end in [(240, 290), (500, 530), (511, 512), (512, 513), (0, 20)]]
    for got, chunk in zip(attend(device, chunks, 16, rule), chunks, strict=True):
        assert_close(got, softmax_attention(chunk, rule))


def test_a_decode_step_far_into_the_context_reads_its_window_alone(
    device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype
) -> None:
    """All blocks before the window are one and the same, of NaN; positions stay exact in ALiBi's distances."""
    num_blocks, block_size, rule = 6250, 16, Rule(window=512, alibi=True)
    tail = random_sequence(rng, dtype, 33 * block_size, 2, 1, 32)
    cache = nan_like(tail.k, (1 + 33, 2, 1, block_size, 32))
    cache[1:, 0, 0] = tail.k[:, 0].reshape(33, block_size, 32)
    cache[1:, 1, 0] = tail.v[:, 0].reshape(33, block_size, 32)
    cache[1, :, :, 0] = nan_like(tail.k, (2, 1, 32))  # the last key before the window of the query at 512 of the tail
    tables = np.zeros((1, num_blocks), np.int32)
    tables[0, -33:] = np.arange(1, 34)
    context_lens = np.array([(num_blocks - 33) * block_size + 513], np.int32)
    q, query_start, out = tail.q[512:513], np.array([0, 1], np.int32), np.zeros((1, 64), tail.q.dtype)
    slopes = rule.slopes(2)
    _core.paged_attention(
        device, q, tiled(cache), query_start, context_lens, tables, out, 32**-0.5, alibi_slopes=slopes, window=512
    )
    assert_close(out, softmax_attention(Chunk(tail, 512, 513), rule))


# Dtype, (query heads, KV heads, head size), and what is done to scores
BIT_CASES: list[tuple[Dtype, tuple[int, int, int], Rule]] = [
    ("bfloat16", (9, 3, 64), NO_RULE),
    ("float32", (4, 4, 16), NO_RULE),
    ("bfloat16", (4, 4, 16), EVERYTHING),
    ("float32", (9, 3, 64), EVERYTHING),
    ("float32", (8, 1, 48), Rule(window=300, alibi=True)),
    ("bfloat16", (2, 1, 16), Rule(window=5, soft_cap=2.0)),
]


@pytest.fixture(params=BIT_CASES, ids=str)
def case(request: pytest.FixtureRequest, rng: np.random.Generator) -> tuple[Sequence, Rule]:
    dtype, heads, rule = request.param
    return random_sequence(rng, dtype, 560, *heads), rule


def whole(device: _core.CpuDevice, case: tuple[Sequence, Rule], block_size: int = 16) -> Array:
    sequence, rule = case
    return attend(device, [Chunk(sequence, 0, sequence.length)], block_size, rule)[0]


@pytest.mark.parametrize("chunk_size", [7, 64, 300])
def test_the_chunking_of_a_prompt_changes_no_bit(
    device: _core.CpuDevice, case: tuple[Sequence, Rule], chunk_size: int
) -> None:
    """Every slot that no query of the chunk sees holds NaN: those before the windows as well as those to come."""
    sequence, rule = case
    pieces = []
    for begin in range(0, sequence.length, chunk_size):
        end = min(sequence.length, begin + chunk_size)
        pieces += attend(device, [Chunk(sequence, begin, end)], 16, rule, seed=begin)
    assert_same_bits(np.concatenate(pieces), whole(device, case))


def test_a_token_alone_has_the_bits_it_has_in_its_prompt(device: _core.CpuDevice, case: tuple[Sequence, Rule]) -> None:
    """Decoding: keys are the same whether they come with the query or long before it."""
    sequence, rule = case
    expected = whole(device, case)
    for at in [*range(20), *range(245, 275), *range(500, 560, 3)]:
        assert_same_bits(attend(device, [Chunk(sequence, at, at + 1)], 16, rule, seed=at)[0], expected[at : at + 1])


@pytest.mark.parametrize("block_size", [1, 3, 256])
def test_the_block_size_changes_no_bit(device: _core.CpuDevice, case: tuple[Sequence, Rule], block_size: int) -> None:
    assert_same_bits(whole(device, case, block_size), whole(device, case, 16))


def test_the_number_of_threads_changes_no_bit(
    device: _core.CpuDevice, one_thread: _core.CpuDevice, case: tuple[Sequence, Rule]
) -> None:
    assert_same_bits(whole(one_thread, case), whole(device, case))


def test_neighbours_in_the_batch_change_no_bit(
    device: _core.CpuDevice, rng: np.random.Generator, case: tuple[Sequence, Rule]
) -> None:
    """Many of them, so that work is cut another way than for one sequence; some are NaN throughout."""
    sequence, rule = case
    num_heads, num_kv_heads, head_dim = sequence.q.shape[1], *sequence.k.shape[1:]
    dtype: Dtype = "bfloat16" if sequence.q.dtype == np.uint16 else "float32"
    alone = whole(device, case)
    others = [random_sequence(rng, dtype, 300, num_heads, num_kv_heads, head_dim) for _ in range(3)]
    nan = Sequence(*(nan_like(array, array.shape) for array in (others[0].q, others[0].k, others[0].v)))
    batch = [Chunk(nan, 0, 40), Chunk(sequence, 300, 560), Chunk(nan, 299, 300)]
    batch += [Chunk(other, begin, begin + 1) for other in others for begin in range(250, 300)]
    batch += [Chunk(sequence, 559, 560), Chunk(nan, 17, 64), Chunk(sequence, 0, 33)]
    got = attend(device, batch, 16, rule)
    assert_same_bits(got[1], alone[300:560])
    assert_same_bits(got[-3], alone[559:])
    assert_same_bits(got[-1], alone[:33])
    assert np.isnan(values_of(got[0])).all()


def test_nan_in_one_query_head_stays_there(device: _core.CpuDevice, case: tuple[Sequence, Rule]) -> None:
    """Heads of a group share the keys that are read."""
    sequence, rule = case
    alone = whole(device, case)
    q = sequence.q.copy()
    q[5::9, 1] = nan_like(q, q[5::9, 1].shape)
    got = whole(device, (Sequence(q, sequence.k, sequence.v), rule)).reshape(q.shape)
    want = alone.reshape(q.shape).copy()
    assert np.isnan(values_of(got[5::9, 1])).all()
    got[5::9, 1] = want[5::9, 1]
    assert_same_bits(got, want)


@pytest.mark.parametrize("what", ["k", "v"])
@pytest.mark.parametrize("position", [0, 255, 402])
def test_a_nan_key_or_value_reaches_the_queries_that_see_it_and_no_other(
    device: _core.CpuDevice, case: tuple[Sequence, Rule], position: int, what: str
) -> None:
    sequence, rule = case
    alone = whole(device, case)
    changed: Array = getattr(sequence, what).copy()
    changed[position] = nan_like(changed, changed[position].shape)
    got = whole(device, (replace(sequence, **{what: changed}), rule))
    at = np.arange(sequence.length)
    seen = (at >= position) & (at < position + rule.window if rule.window else True)
    assert np.isnan(values_of(got[seen])).all()
    assert_same_bits(got[~seen], alone[~seen])


def test_large_scores_do_not_overflow(device: _core.CpuDevice, rng: np.random.Generator, dtype: Dtype) -> None:
    quiet = random_sequence(rng, dtype, 300, 2, 1, 64)
    loud = random_sequence(rng, dtype, 300, 2, 1, 64, loudness=64.0)
    for rule in (NO_RULE, Rule(soft_cap=50.0)):
        chunk = Chunk(Sequence(loud.q, loud.k, quiet.v), 0, 300)
        assert_close(attend(device, [chunk], 16, rule)[0], softmax_attention(chunk, rule), slack=2e-2)


def test_bad_arguments_are_named(device: _core.CpuDevice) -> None:
    cache = np.zeros((4, 2, 1, 16, 32), np.uint16)
    q, out = np.zeros((2, 3, 32), np.uint16), np.zeros((2, 96), np.uint16)
    start, tables = np.array([0, 1, 2], np.int32), np.zeros((2, 2), np.int32)

    def run(**changed: npt.NDArray[np.generic] | float) -> None:
        arguments = {"q": q, "kv_cache": cache, "query_start": start, "context_lens": np.array([32, 1], np.int32)}
        arguments |= {"block_tables": tables, "out": out}
        _core.paged_attention(device, **({"scale": 1.0} | arguments | changed))  # type: ignore[arg-type]

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
    with pytest.raises(ValueError, match="kv_cache must be contiguous along its last two axes"):
        run(kv_cache=np.zeros((4, 2, 1, 16, 64), np.uint16)[..., :32])
    with pytest.raises(ValueError, match="window must be >= 0, got -1"):
        run(window=-1)
    with pytest.raises(ValueError, match=r"soft_cap must be finite and >= 0, got -1\.0"):
        run(soft_cap=-1.0)
    with pytest.raises(ValueError, match=r"alibi_slopes must be float32 \[Hq=3\], got float32 \[2\]"):
        run(alibi_slopes=np.ones(2, np.float32))
    with pytest.raises(ValueError, match="kv_cache must be bfloat16"):
        run(kv_cache=np.zeros((4, 2, 1, 16, 32), np.float32))
