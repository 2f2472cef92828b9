"""How long a context may be, and how large the KV pool and the host's memory are."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from tiny_model import tiny_llama_config

from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.kv_sizing import Memory, fitted_max_model_len, num_host_blocks, num_kv_blocks

MODEL = tiny_llama_config()
GIB = 1 << 30
PLENTY = Memory(1 << 60)
TABLES = 100 * 64  # of 100 positions: 16 elements of a head, in float32
BLOCK_BYTES = 16 * MODEL.kv_bytes_per_token("bfloat16")  # 16 tokens x 2 layers x 2 x 2 heads x 16 x 2 bytes


def test_by_default_it_is_a_quarter_of_free_memory_but_no_more_than_could_be_used() -> None:
    assert BLOCK_BYTES == 4096
    config = EngineConfig(model="m", max_num_seqs=10)
    assert num_kv_blocks(config, MODEL, 100, PLENTY) == 10 * 7
    for weights in (0, 12345):
        enough = 4 * 50 * BLOCK_BYTES + TABLES + weights
        assert num_kv_blocks(config, MODEL, 100, Memory(enough, weights)) == 50
        assert num_kv_blocks(config, MODEL, 100, Memory(enough - 1, weights)) == 49


def test_given_blocks_or_bytes_are_taken_up_to_all_that_weights_and_tables_leave() -> None:
    by_blocks = EngineConfig(model="m", num_blocks=10)
    by_bytes = EngineConfig(model="m", kv_cache_memory_bytes=10 * BLOCK_BYTES + 4095)
    for weights in (0, 12345):
        enough = 10 * BLOCK_BYTES + TABLES + weights
        for config in (by_blocks, by_bytes):
            assert num_kv_blocks(config, MODEL, 100, Memory(enough, weights)) == 10
            with pytest.raises(InvalidRequestError) as error:
                num_kv_blocks(config, MODEL, 100, Memory(enough - 1, weights))
            # 9 blocks are 144 tokens; with the tables of as many they take 46080, of 47359.
            assert str(error.value) == (
                f"weights, tables and KV pool must fit into free memory: need {enough} bytes ({weights} for the "
                f"weights, 6400 for the rotary tables of max_model_len = 100, 40960 for the KV pool of num_blocks = "
                f"10), have {enough - 1}; the largest num_blocks that fits is 9 (kv_cache_memory_bytes = 36864); the "
                f"largest max_model_len that fits, in as many blocks as it needs, is 144"
            )


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(model="m"),
        EngineConfig(model="m", max_model_len=-1),
        EngineConfig(model="m", num_blocks=5),
        EngineConfig(model="m", num_blocks=5, max_model_len=-1),
        EngineConfig(model="m", kv_cache_memory_bytes=10**12),
    ],
)
def test_weights_that_do_not_fit_are_named_whatever_sizes_the_pool(config: EngineConfig) -> None:
    memory = Memory(1000, 80 * 10**9)
    with pytest.raises(InvalidRequestError) as error:
        num_kv_blocks(config, MODEL, fitted_max_model_len(config, MODEL, memory), memory)
    for part in ("(80000000000 for the weights, ", "have 1000; the weights alone leave no room"):
        assert part in str(error.value)


def test_tables_that_leave_no_room_are_named_with_the_context_that_would_fit() -> None:
    config = EngineConfig(model="m")
    memory = Memory(512 * 64 + BLOCK_BYTES - 1)  # one block and the tables of 512 positions, less a byte
    with pytest.raises(InvalidRequestError) as error:
        num_kv_blocks(config, MODEL, fitted_max_model_len(config, MODEL, memory), memory)
    for part in (
        "32768 for the rotary tables of max_model_len = 512, 4096 for the KV pool of num_blocks = 1), have 36863",
        "; not one block fits beside weights and tables; the largest max_model_len that fits",
        "is 112",
    ):
        assert part in str(error.value)
    fitting = EngineConfig(model="m", max_model_len=112, num_blocks=7)
    assert num_kv_blocks(fitting, MODEL, 112, memory) == 7
    with pytest.raises(InvalidRequestError):
        num_kv_blocks(EngineConfig(model="m", max_model_len=128, num_blocks=8), MODEL, 128, memory)


@pytest.mark.parametrize("free", [*range(17_000, 40_000, 777), 10**6, 10**8])
@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_an_auto_fitted_context_its_tables_and_its_pool_fit(free: int, block_size: int) -> None:
    config = EngineConfig(model="m", max_model_len=-1, block_size=block_size)
    fitted = fitted_max_model_len(config, MODEL, Memory(free))
    num_blocks = num_kv_blocks(config, MODEL, fitted, Memory(free))
    assert num_blocks * block_size >= fitted
    block_bytes = block_size * BLOCK_BYTES // 16
    assert 4 * num_blocks * block_bytes + 64 * fitted <= free
    if fitted < 512:
        longer = fitted + block_size
        assert 4 * (longer // block_size) * block_bytes + 64 * longer > free, "one block more would not"


def test_the_block_size_counts() -> None:
    config = EngineConfig(model="m", max_num_seqs=10, block_size=7)
    assert num_kv_blocks(config, MODEL, 100, PLENTY) == 10 * 15


@pytest.mark.parametrize(
    ("config", "memory", "named"),
    [
        (EngineConfig(model="m", kv_cache_memory_bytes=4095), PLENTY, "kv_cache_memory_bytes = 4095"),
        (EngineConfig(model="m"), Memory(4 * 4096 - 1 + TABLES), "25 % of 16383 free bytes"),
    ],
)
def test_a_pool_without_a_block_is_refused(config: EngineConfig, memory: Memory, named: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        num_kv_blocks(config, MODEL, 100, memory)
    assert str(error.value) == (
        f"the KV pool must hold at least one block of 16 tokens: need 4096 bytes, have 4095 ({named}); 15 tokens would "
        "fit, in blocks of as many. Give more kv_cache_memory_bytes, or a smaller block_size"
    )
    with pytest.raises(InvalidRequestError, match="have 255 .*; not one token fits"):
        num_kv_blocks(EngineConfig(model="m", kv_cache_memory_bytes=255), MODEL, 100, PLENTY)


def test_slots_that_would_not_fit_their_integers_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"num_blocks must be at most 8388607 .* got 8388608"):
        num_kv_blocks(EngineConfig(model="m", block_size=256, num_blocks=1 << 23), MODEL, 100, PLENTY)


def test_a_pool_smaller_than_the_context_is_legal_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert num_kv_blocks(EngineConfig(model="m", num_blocks=6), MODEL, 96, PLENTY) == 6
        assert caplog.text == ""
        assert num_kv_blocks(EngineConfig(model="m", num_blocks=6), MODEL, 97, PLENTY) == 6
    (record,) = caplog.records
    for part in (
        "holds 96 tokens, fewer than max_model_len = 97",
        f"need {7 * BLOCK_BYTES} bytes; it has {6 * BLOCK_BYTES} (num_blocks = 6)",
        "largest max_model_len that fits is 96",
    ):
        assert part in record.getMessage()


def test_float32_takes_twice_the_bytes() -> None:
    config = EngineConfig(model="m", dtype="float32", kv_cache_memory_bytes=10 * BLOCK_BYTES)
    assert num_kv_blocks(config, MODEL, 80, PLENTY) == 5
    assert host_blocks(1 << 40, swap_space=1, dtype="float32") == GIB // BLOCK_BYTES // 2


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("kv_cache_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_in_8_bits_a_key_or_value_takes_a_byte_for_each_number_and_four_more(dtype: str, kv_cache_dtype: str) -> None:
    config = EngineConfig(model="m", dtype=dtype, kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=10 * 2560 + 2559)
    block_bytes = 16 * 2 * 2 * 2 * (16 + 4)  # tokens, K and V, layers, heads
    assert block_bytes == 2560
    assert num_kv_blocks(config, MODEL, 100, PLENTY) == 10
    swapping = EngineConfig(model="m", dtype=dtype, kv_cache_dtype=kv_cache_dtype, swap_space=7 * block_bytes / GIB)
    assert num_host_blocks(swapping, MODEL, 100, 10, PLENTY) == 7
    fitting = replace(config, max_model_len=-1, kv_cache_memory_bytes=5 * block_bytes)
    assert fitted_max_model_len(fitting, MODEL, PLENTY) == 80


def test_the_context_is_the_models_or_as_asked_for_and_no_longer() -> None:
    assert fitted_max_model_len(EngineConfig(model="m", num_blocks=1), MODEL, PLENTY) == 512
    assert fitted_max_model_len(EngineConfig(model="m", num_blocks=1, max_model_len=512), MODEL, PLENTY) == 512
    with pytest.raises(InvalidRequestError, match=r"max_model_len must be at most 512.*, got 513"):
        fitted_max_model_len(EngineConfig(model="m", max_model_len=513), MODEL, PLENTY)


@pytest.mark.parametrize(
    ("settings", "free_bytes", "expected"),
    [
        ({"num_blocks": 6}, 1 << 40, 96),
        ({"num_blocks": 32}, 1 << 40, 512),
        ({"num_blocks": 33}, 1 << 40, 512),
        ({"kv_cache_memory_bytes": 7 * BLOCK_BYTES - 1}, 1 << 40, 96),
        ({"kv_cache_memory_bytes": 7 * BLOCK_BYTES - 1, "dtype": "float32"}, 1 << 40, 48),
        ({"kv_cache_memory_bytes": 7 * BLOCK_BYTES - 1, "block_size": 1}, 1 << 40, 7 * 16 - 1),
        ({}, 4 * 20 * BLOCK_BYTES + 320 * 64, 320),
        ({}, 1 << 40, 512),
    ],
)
def test_an_auto_fitted_context_is_the_longest_that_the_pool_holds(
    settings: dict[str, Any], free_bytes: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(model="m", max_model_len=-1, **settings)
    fitted = fitted_max_model_len(config, MODEL, Memory(free_bytes))
    assert fitted == expected
    with caplog.at_level(logging.WARNING):
        num_kv_blocks(config, MODEL, fitted, Memory(free_bytes))
    assert caplog.text == ""


def test_an_auto_fitted_context_holds_two_tokens_or_says_what_there_is() -> None:
    config = EngineConfig(model="m", max_model_len=-1, num_blocks=1, block_size=1)
    with pytest.raises(
        InvalidRequestError, match=r"at least two tokens.*: need 512 bytes, have 256 \(num_blocks = 1\)"
    ):
        fitted_max_model_len(config, MODEL, PLENTY)


def host_blocks(free_bytes: int, *, num_blocks: int = 50, max_model_len: int = 100, **settings: Any) -> int:
    config = EngineConfig(model="m", **settings)
    return num_host_blocks(config, MODEL, max_model_len, num_blocks, Memory(free_bytes + max_model_len * 64))


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
        f"have {left} ({free + TABLES} free, less 0 for the weights, {TABLES} for the rotary tables and "
        f"{50 * BLOCK_BYTES} for the KV pool)"
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
