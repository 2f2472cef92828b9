"""The bytes of the KV pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forced import greedy
from tiny_model import tiny_llama_config

from fastpaged import _core
from fastpaged.config import DType
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.kv_memory import KVMemory

MODEL = tiny_llama_config()
BLOCK_BYTES = 16 * MODEL.kv_bytes_per_token("bfloat16")  # 16 tokens x 2 layers x 2 x 2 heads x 16 x 2 bytes


DTYPES: list[tuple[DType, type]] = [("bfloat16", np.uint16), ("float32", np.float32)]


@pytest.mark.parametrize(("dtype", "element"), DTYPES)
def test_memory_is_block_major_and_zero(dtype: DType, element: type) -> None:
    memory = KVMemory(5, 3, MODEL, dtype=dtype)
    assert memory.array.shape == (5, 2, 2, 2, 3, 16)
    assert memory.array.dtype == element
    assert memory.array.flags.c_contiguous
    assert memory.array.flags.writeable
    assert not memory.array.any()


@pytest.mark.parametrize(("dtype", "element"), DTYPES)
def test_host_memory_is_of_the_same_blocks(dtype: DType, element: type) -> None:
    memory = KVMemory(5, 3, MODEL, 7, dtype)
    assert memory.host_array.shape == (7, *memory.array.shape[1:])
    assert memory.host_array.dtype == element
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


@pytest.mark.parametrize(("dtype", "element"), DTYPES)
@pytest.mark.parametrize(("value", "bits"), [(float("nan"), 0x7FC0), (-1.5, 0xBFC0)])
def test_filling_blocks_fills_them_and_no_others(dtype: DType, element: type, value: float, bits: int) -> None:
    memory = KVMemory(6, 4, MODEL, 5, dtype)
    memory.fill_blocks([1, 4], value)
    memory.fill_blocks([], 3.0)
    memory.fill_host_blocks([2], value)
    whole = bits if element is np.uint16 else bits << 16
    unsigned = np.uint16 if element is np.uint16 else np.uint32
    assert (memory.array.view(unsigned)[[1, 4]] == whole).all()
    assert not memory.array[[0, 2, 3, 5]].any()
    assert (memory.host_array.view(unsigned)[2] == whole).all()
    assert not memory.host_array[[0, 1, 3, 4]].any()


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
    with pytest.raises(
        InvalidRequestError, match="a KV pool of .* which the system refuses .* room for .* smaller num_blocks"
    ):
        KVMemory(2**31 - 1, 1 << 20, MODEL)
    with pytest.raises(InvalidRequestError, match="host memory of .* which the system refuses .* smaller swap_space"):
        KVMemory(1, 1 << 20, MODEL, 2**31 - 1)
