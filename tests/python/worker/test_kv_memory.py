"""How large the KV pool is, and its bytes."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_config

from fastpaged.config import EngineConfig, ModelConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.kv_memory import KVMemory, num_kv_blocks

MODEL = ModelConfig.from_hf(tiny_config())
BLOCK_BYTES = 16 * MODEL.kv_bytes_per_token  # 16 tokens x 2 layers x 2 x 2 heads x 16 x 2 bytes


def test_by_default_it_is_a_quarter_of_free_memory_but_no_more_than_could_be_used() -> None:
    assert BLOCK_BYTES == 4096
    config = EngineConfig(model="m", max_num_seqs=10)
    assert num_kv_blocks(config, MODEL, max_model_len=100, free_bytes=1 << 40) == 10 * 7
    assert num_kv_blocks(config, MODEL, max_model_len=100, free_bytes=4 * 50 * BLOCK_BYTES) == 50
    assert num_kv_blocks(config, MODEL, max_model_len=100, free_bytes=4 * 50 * BLOCK_BYTES - 1) == 49


def test_given_blocks_or_bytes_are_taken_whatever_is_free() -> None:
    by_blocks = EngineConfig(model="m", num_blocks=123)
    by_bytes = EngineConfig(model="m", kv_cache_memory_bytes=10 * BLOCK_BYTES + 4095)
    assert num_kv_blocks(by_blocks, MODEL, max_model_len=100, free_bytes=1) == 123
    assert num_kv_blocks(by_bytes, MODEL, max_model_len=100, free_bytes=1) == 10


def test_the_block_size_counts() -> None:
    config = EngineConfig(model="m", max_num_seqs=10, block_size=7)
    assert num_kv_blocks(config, MODEL, max_model_len=100, free_bytes=1 << 40) == 10 * 15


@pytest.mark.parametrize(
    ("config", "free_bytes", "named"),
    [
        (EngineConfig(model="m", kv_cache_memory_bytes=4095), 0, "kv_cache_memory_bytes = 4095"),
        (EngineConfig(model="m"), 4 * 4096 - 1, "25 % of 16383 free bytes"),
    ],
)
def test_a_pool_without_a_block_is_refused(config: EngineConfig, free_bytes: int, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"at least one block of 16 tokens, 4096 bytes; {named}"):
        num_kv_blocks(config, MODEL, max_model_len=100, free_bytes=free_bytes)


def test_slots_that_would_not_fit_their_integers_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"num_blocks must be at most 8388607 .* got 8388608"):
        num_kv_blocks(EngineConfig(model="m", block_size=256, num_blocks=1 << 23), MODEL, max_model_len=100)


def test_a_pool_smaller_than_the_context_is_legal_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert num_kv_blocks(EngineConfig(model="m", num_blocks=6), MODEL, max_model_len=96) == 6
        assert caplog.text == ""
        assert num_kv_blocks(EngineConfig(model="m", num_blocks=6), MODEL, max_model_len=97) == 6
    assert "holds 96 tokens" in caplog.text
    assert "max_model_len = 97" in caplog.text


def test_memory_is_block_major_and_zero() -> None:
    memory = KVMemory(5, 3, MODEL)
    assert memory.array.shape == (5, 2, 2, 2, 3, 16)
    assert memory.array.dtype == np.uint16
    assert memory.array.flags.c_contiguous
    assert memory.array.flags.writeable
    assert not memory.array.any()


def test_filling_blocks_fills_them_and_no_others() -> None:
    memory = KVMemory(6, 4, MODEL)
    memory.fill_blocks([1, 4], 0x7FC0)
    memory.fill_blocks([], 0x1234)
    assert (memory.array[[1, 4]] == 0x7FC0).all()
    assert not memory.array[[0, 2, 3, 5]].any()


def test_memory_costs_nothing_until_it_is_written() -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc")

    def resident_pages() -> int:
        return int(status.read_text().split()[1])

    before = resident_pages()
    memory = KVMemory(1 << 16, 16, MODEL)  # 256 MiB
    assert resident_pages() - before < 4096  # 16 MiB
    memory.array[:] = 1
    assert resident_pages() - before > 4096


def test_a_pool_the_system_refuses_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="which the system refuses"):
        KVMemory(2**31 - 1, 1 << 20, MODEL)
