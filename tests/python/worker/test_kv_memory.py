"""The bytes of the KV pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forced import greedy
from tiny_model import tiny_llama_config

from fastpaged import _core
from fastpaged.cli.kv_noise import fill_with_noise
from fastpaged.config import DType, KVDType
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.kv_memory import KVMemory

MODEL = tiny_llama_config()
DTYPES: list[tuple[DType, type]] = [("bfloat16", np.uint16), ("float32", np.float32)]
IN_8_BITS: list[KVDType] = ["fp8_e4m3", "fp8_e5m2", "int8"]


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


@pytest.mark.parametrize("dtype", IN_8_BITS)
@pytest.mark.parametrize(("block_size", "tiles", "slots"), [(3, 1, 3), (16, 1, 16), (32, 2, 16), (40, 1, 40)])
def test_of_8_bits_a_block_is_bytes_of_each_tile_its_codes_and_then_their_scales(
    block_size: int, tiles: int, slots: int, dtype: KVDType
) -> None:
    memory = KVMemory(5, block_size, MODEL, 7, dtype)
    for array, num_blocks in ((memory.array, 5), (memory.host_array, 7)):
        assert array.shape == (num_blocks, 2, 2, 2, block_size * (16 + 4))
        assert array.dtype == np.uint8
        assert array.flags.c_contiguous and array.flags.writeable
        assert not array.any()
        codes, scales = memory.codes_and_scales(array)
        assert codes.shape == (num_blocks, 2, 2, 2, tiles, slots * 16)
        assert scales.shape == (num_blocks, 2, 2, 2, tiles, slots)
        assert scales.flags.aligned
        scales[:], codes[:] = 1.0, 7
        tile = bytes([7] * slots * 16) + np.ones(slots, np.float32).tobytes()
        assert array.tobytes() == tile * (num_blocks * 8 * tiles)


@pytest.mark.parametrize("dtype", IN_8_BITS)
def test_of_8_bits_a_pool_takes_little_more_than_half_the_bytes_of_bfloat16(dtype: KVDType) -> None:
    head_of_64 = replace(MODEL, head_dim=64)
    pools = [KVMemory(11, 16, head_of_64, 3, of).array.nbytes for of in ("bfloat16", dtype)]
    assert pools[1] / pools[0] == 68 / 128 < 0.54
    assert KVMemory(11, 16, head_of_64, 3, dtype).array.nbytes == 11 * 16 * head_of_64.kv_bytes_per_token(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", *IN_8_BITS])
def test_copies_are_run_and_their_bytes_counted_by_kind(dtype: KVDType) -> None:
    block_bytes = 16 * MODEL.kv_bytes_per_token(dtype)
    memory = KVMemory(8, 16, MODEL, 4, dtype)
    per_block = memory.array.reshape(8, -1)
    per_block[:] = np.random.default_rng(3).integers(0, 256, per_block.shape)
    before = per_block.copy()
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
    assert memory.copy(plan) == block_bytes
    scheduler.update_tokens(plan, [5, 6])
    scheduler.preempt(0, "swap")
    plan = scheduler.schedule()
    assert memory.copy(plan) == 8 * block_bytes  # two shared blocks and one of each branch: out, and in again
    assert memory.num_bytes_copied == {
        "swap_out": 4 * block_bytes,
        "swap_in": 4 * block_bytes,
        "copy_on_write": block_bytes,
    }
    np.testing.assert_array_equal(memory.host_array.reshape(4, -1), before[[0, 1, 2, 2]])


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


@pytest.mark.parametrize("dtype", IN_8_BITS)
@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.5])
def test_of_8_bits_filling_blocks_fills_their_scales(dtype: KVDType, value: float) -> None:
    memory = KVMemory(6, 4, MODEL, 5, dtype)
    memory.array[:] = memory.host_array[:] = 9
    memory.fill_blocks([1, 4], value)
    memory.fill_blocks([], 3.0)
    memory.fill_host_blocks([2], value)
    for array, filled in ((memory.array, [1, 4]), (memory.host_array, [2])):
        codes, scales = memory.codes_and_scales(array)
        np.testing.assert_array_equal(scales[filled], np.full((len(filled), 2, 2, 2, 1, 4), value, np.float32))
        assert (codes[filled] == {"fp8_e4m3": 0x38, "fp8_e5m2": 0x3C, "int8": 1}[dtype]).all()  # worth 1
        assert (np.delete(array, filled, 0) == 9).all()


@pytest.mark.parametrize(("dtype", "limit"), [("fp8_e4m3", 0x7E), ("fp8_e5m2", 0x7B), ("int8", 0x7F)])
def test_noise_is_of_codes_that_are_written_of_both_signs(dtype: KVDType, limit: int) -> None:
    memory = KVMemory(3, 64, MODEL, 0, dtype)
    fill_with_noise(memory)
    codes, scales = memory.codes_and_scales(memory.array)
    values = codes.view(np.int8) if dtype == "int8" else np.where(codes & 0x80, -1, 1) * (codes & 0x7F).astype(np.int16)
    assert values.max() == -values.min() == limit
    assert np.isfinite(scales).all() and (scales > 0).all()
    assert (memory.array == memory.array[:1]).all()


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
