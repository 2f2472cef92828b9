"""How long a context may be, and how large the KV pool and the host's memory are."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tiny_model import tiny_llama_config

from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.kv_sizing import fitted_max_model_len, num_host_blocks, num_kv_blocks

MODEL = tiny_llama_config()
GIB = 1 << 30
BLOCK_BYTES = 16 * MODEL.kv_bytes_per_token("bfloat16")  # 16 tokens x 2 layers x 2 x 2 heads x 16 x 2 bytes


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
    with pytest.raises(InvalidRequestError) as error:
        num_kv_blocks(config, MODEL, max_model_len=100, free_bytes=free_bytes)
    assert str(error.value) == (
        f"the KV pool must hold at least one block of 16 tokens: need 4096 bytes, have 4095 ({named}); 15 tokens would "
        "fit, in blocks of as many. Give more kv_cache_memory_bytes, or a smaller block_size"
    )
    with pytest.raises(InvalidRequestError, match="have 255 .*; not one token fits"):
        num_kv_blocks(EngineConfig(model="m", kv_cache_memory_bytes=255), MODEL, max_model_len=100)


def test_slots_that_would_not_fit_their_integers_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"num_blocks must be at most 8388607 .* got 8388608"):
        num_kv_blocks(EngineConfig(model="m", block_size=256, num_blocks=1 << 23), MODEL, max_model_len=100)


def test_a_pool_smaller_than_the_context_is_legal_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert num_kv_blocks(EngineConfig(model="m", num_blocks=6), MODEL, max_model_len=96) == 6
        assert caplog.text == ""
        assert num_kv_blocks(EngineConfig(model="m", num_blocks=6), MODEL, max_model_len=97) == 6
    (record,) = caplog.records
    for part in (
        "holds 96 tokens, fewer than max_model_len = 97",
        f"need {7 * BLOCK_BYTES} bytes; it has {6 * BLOCK_BYTES} (num_blocks = 6)",
        "largest max_model_len that fits is 96",
    ):
        assert part in record.getMessage()


def test_float32_takes_twice_the_bytes() -> None:
    config = EngineConfig(model="m", dtype="float32", kv_cache_memory_bytes=10 * BLOCK_BYTES)
    assert num_kv_blocks(config, MODEL, max_model_len=80) == 5
    assert host_blocks(1 << 40, swap_space=1, dtype="float32") == GIB // BLOCK_BYTES // 2


def test_the_context_is_the_models_or_as_asked_for_and_no_longer() -> None:
    assert fitted_max_model_len(EngineConfig(model="m", num_blocks=1), MODEL) == 512
    assert fitted_max_model_len(EngineConfig(model="m", num_blocks=1, max_model_len=512), MODEL) == 512
    with pytest.raises(InvalidRequestError, match=r"max_model_len must be at most 512.*, got 513"):
        fitted_max_model_len(EngineConfig(model="m", max_model_len=513), MODEL)


@pytest.mark.parametrize(
    ("settings", "free_bytes", "expected"),
    [
        ({"num_blocks": 6}, 0, 96),
        ({"num_blocks": 32}, 0, 512),
        ({"num_blocks": 33}, 0, 512),
        ({"kv_cache_memory_bytes": 7 * BLOCK_BYTES - 1}, 0, 96),
        ({"kv_cache_memory_bytes": 7 * BLOCK_BYTES - 1, "dtype": "float32"}, 0, 48),
        ({"kv_cache_memory_bytes": 7 * BLOCK_BYTES - 1, "block_size": 1}, 0, 7 * 16 - 1),
        ({}, 4 * 20 * BLOCK_BYTES, 320),
        ({}, 1 << 40, 512),
    ],
)
def test_an_auto_fitted_context_is_the_longest_that_the_pool_holds(
    settings: dict[str, Any], free_bytes: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(model="m", max_model_len=-1, **settings)
    fitted = fitted_max_model_len(config, MODEL, free_bytes)
    assert fitted == expected
    with caplog.at_level(logging.WARNING):
        num_kv_blocks(config, MODEL, fitted, free_bytes)
    assert caplog.text == ""


def test_an_auto_fitted_context_holds_two_tokens_or_says_what_there_is() -> None:
    config = EngineConfig(model="m", max_model_len=-1, num_blocks=1, block_size=1)
    with pytest.raises(
        InvalidRequestError, match=r"at least two tokens.*: need 512 bytes, have 256 \(num_blocks = 1\)"
    ):
        fitted_max_model_len(config, MODEL)


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
