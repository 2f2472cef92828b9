"""How large the KV pool is, and its bytes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced import greedy
from tiny_model import tiny_config

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.models.registry import config_from_hf
from fastpaged.worker.kv_memory import KVMemory, num_host_blocks, num_kv_blocks

MODEL = config_from_hf(tiny_config())
GIB = 1 << 30
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


def host_blocks(free_bytes: int, *, num_blocks: int = 50, max_model_len: int = 100, **settings: Any) -> int:
    config = EngineConfig(model="m", **settings)
    return num_host_blocks(config, MODEL, max_model_len, num_blocks, free_bytes)


@pytest.mark.parametrize(
    ("swap_space", "expected"),
    [(0, 0), (0.0, 0), (1, GIB // BLOCK_BYTES), (0.5, GIB // 2 // BLOCK_BYTES), (4095 / GIB, 0), (8191 / GIB, 1)],
)
def test_host_blocks_are_what_the_swap_space_holds(swap_space: float, expected: int) -> None:
    assert host_blocks(2 * GIB, swap_space=swap_space) == expected


def test_a_swap_space_may_be_all_that_the_pool_leaves_and_no_more() -> None:
    left = 10 * BLOCK_BYTES
    free = left + 50 * BLOCK_BYTES
    assert host_blocks(free, swap_space=left / GIB) == 10
    with pytest.raises(InvalidRequestError) as error:
        host_blocks(free, swap_space=(left + 1) / GIB)
    assert str(error.value) == (
        f"swap_space must fit into the memory that is left, got {(left + 1) / GIB} GiB: need {left + 1} bytes, "
        f"have {left} ({free} free, less {50 * BLOCK_BYTES} for the KV pool)"
    )


def test_none_is_needed_where_the_pool_takes_more_than_there_is() -> None:
    assert host_blocks(0, swap_space=0) == 0
    assert host_blocks(0) == 0
    with pytest.raises(InvalidRequestError, match="swap_space .*, have 0 "):
        host_blocks(0, swap_space=1)


def test_by_default_4_gib_are_kept_for_swapping_where_they_are_there_and_of_use() -> None:
    assert host_blocks(1 << 40, num_blocks=1 << 24, max_model_len=1 << 24) == 4 * GIB // BLOCK_BYTES
    pool = 50 * BLOCK_BYTES
    assert host_blocks(pool + 4 * 30 * BLOCK_BYTES) == 30  # a quarter of what the pool leaves
    assert host_blocks(pool + 4 * 30 * BLOCK_BYTES - 1) == 29
    assert host_blocks(1 << 40, max_num_seqs=10) == 10 * 7  # 7 blocks are 100 tokens
    assert host_blocks(1 << 40, max_num_seqs=10, num_blocks=3) == 10 * 3  # nobody grows beyond the pool


def test_host_blocks_stay_within_their_integers() -> None:
    assert host_blocks(1 << 62, swap_space=2**28, block_size=1) == 2**31 - 1


def test_memory_is_block_major_and_zero() -> None:
    memory = KVMemory(5, 3, MODEL)
    assert memory.array.shape == (5, 2, 2, 2, 3, 16)
    assert memory.array.dtype == np.uint16
    assert memory.array.flags.c_contiguous
    assert memory.array.flags.writeable
    assert not memory.array.any()


def test_host_memory_is_of_the_same_blocks() -> None:
    memory = KVMemory(5, 3, MODEL, 7)
    assert memory.host_array.shape == (7, *memory.array.shape[1:])
    assert memory.host_array.dtype == np.uint16
    assert memory.host_array.flags.c_contiguous
    assert memory.host_array.flags.writeable
    assert not memory.host_array.any()
    assert KVMemory(5, 3, MODEL).host_array.shape == (0, *memory.array.shape[1:])


def test_copies_are_run_and_their_bytes_counted_by_kind() -> None:
    memory = KVMemory(8, 16, MODEL, 4)
    memory.array[:] = np.arange(8, dtype=np.uint16).reshape(8, 1, 1, 1, 1, 1)
    policy = _core.SchedulerPolicy(preemption_mode="swap")
    scheduler = _core.Scheduler(
        num_blocks=8, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=128, num_host_blocks=4,
        policy=policy,
    )  # fmt: skip
    scheduler.add(0, [5] * 40, greedy(), 9, [])
    plan = scheduler.schedule()
    assert memory.copy(plan) == 0
    scheduler.update_tokens(plan, [5])
    scheduler.fork(0, scheduler.sequences(0)[0])
    plan = scheduler.schedule()
    assert plan.copies == [("copy_on_write", 2, 3, 1)]
    assert memory.copy(plan) == BLOCK_BYTES
    scheduler.update_tokens(plan, [5, 6])
    scheduler.preempt(0, "swap")
    plan = scheduler.schedule()
    assert memory.copy(plan) == 8 * BLOCK_BYTES  # two shared blocks and one of each branch: out, and in again
    assert memory.num_bytes_copied == {
        "swap_out": 4 * BLOCK_BYTES,
        "swap_in": 4 * BLOCK_BYTES,
        "copy_on_write": BLOCK_BYTES,
    }
    assert memory.host_array[:, 0, 0, 0, 0, 0].tolist() == [0, 1, 2, 2]


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
    memory = KVMemory(1 << 16, 16, MODEL, 1 << 16)  # 256 MiB each
    assert resident_pages() - before < 4096  # 16 MiB
    for array in (memory.array, memory.host_array):
        before = resident_pages()
        array[:] = 1
        assert resident_pages() - before > 4096


def test_a_pool_the_system_refuses_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="a KV pool of .* which the system refuses .* smaller num_blocks"):
        KVMemory(2**31 - 1, 1 << 20, MODEL)
    with pytest.raises(InvalidRequestError, match="host memory of .* which the system refuses .* smaller swap_space"):
        KVMemory(1, 1 << 20, MODEL, 2**31 - 1)
