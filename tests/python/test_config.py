"""The door: every bad setting is refused by name, with the value given and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("dtype", "float16", "files in it are read as bfloat16 or float32"),
        ("dtype", "half", "files in it are read as bfloat16 or float32"),
        ("dtype", "fp32", "'auto', 'bfloat16' or 'float32'"),
        ("dtype", None, "'auto', 'bfloat16' or 'float32'"),
        ("dtype", "int8", "of 8 bits is the KV cache alone: give kv_cache_dtype"),
        ("dtype", "fp8", "of 8 bits is the KV cache alone: give kv_cache_dtype"),
        ("kv_cache_dtype", "nvfp4", "no KV cache of fewer than 8 bits"),
        ("kv_cache_dtype", "int4", "no KV cache of fewer than 8 bits"),
        ("kv_cache_dtype", "fp8_e4m3fnuz", "'auto', 'bfloat16', 'float32', 'fp8_e4m3', 'fp8_e5m2' or 'int8'"),
        ("kv_cache_dtype", "float32", "'int8' or the same as dtype = 'auto', which is 'bfloat16': keys"),
        ("kv_cache_dtype", 8, "'auto', 'bfloat16', 'float32', 'fp8_e4m3', 'fp8_e5m2' or 'int8'"),
        ("max_model_len", 1, "None, -1 or an integer from 2"),
        ("max_model_len", -2, "None, -1 or an integer from 2"),
        ("max_model_len", -1.0, "None, -1 or an integer from 2"),
        ("max_model_len", 2**31, "None, -1 or an integer from 2"),
        ("block_size", 0, "from 1 to 256"),
        ("block_size", 257, "from 1 to 256"),
        ("block_size", None, "from 1 to 256"),
        ("num_blocks", 0, "None or an integer from 1"),
        ("kv_cache_memory_bytes", -1, "None or an integer from 1"),
        ("max_num_seqs", 0, "from 1"),
        ("max_num_batched_tokens", 0, "from 1"),
        ("max_num_batched_tokens", 2**31 - 1, "to 1048576"),
        ("max_num_batched_tokens", 1.5, "an integer"),
        ("max_num_batched_tokens", True, "an integer"),
        ("long_prefill_token_threshold", -1, "from 0"),
        ("seed", -1, "from 0"),
        ("seed", 2**64, "from 0"),
        ("max_logprobs", -2, "from -1"),
        ("num_threads", 0, "from 1 to 1024"),
        ("num_threads", "2", "from 1 to 1024"),
        ("swap_space", -1, "None or a number of GiB from 0 to 8589934591"),
        ("swap_space", -1e-9, "from 0"),
        ("swap_space", float("nan"), "from 0"),
        ("swap_space", float("inf"), "to 8589934591"),
        ("swap_space", 2**33, "to 8589934591"),
        ("swap_space", "4", "a number"),
        ("swap_space", True, "a number"),
        ("preemption_mode", "cheapest", "'auto' or 'recompute' or 'swap' or 'by_branches' or None"),
        ("preemption_mode", "", "'auto' or 'recompute' or 'swap' or 'by_branches' or None"),
        ("preemption_mode", 0, "'auto' or 'recompute' or 'swap' or 'by_branches' or None"),
        ("preemption_mode", [], "'auto' or 'recompute' or 'swap' or 'by_branches' or None"),
        ("scheduling_policy", "lifo", "'fcfs' or 'priority'"),
        ("scheduling_policy", None, "'fcfs' or 'priority'"),
        ("queue_timeout", 0, "None or a number of seconds > 0"),
        ("queue_timeout", -1.5, "None or a number of seconds > 0"),
        ("queue_timeout", float("nan"), "None or a number of seconds > 0"),
        ("queue_timeout", True, "None or a number of seconds > 0"),
        ("queue_timeout", "1", "None or a number of seconds > 0"),
        ("max_num_queued_requests", 0, "None or an integer from 1"),
        ("max_num_queued_tokens", 0, "None or an integer from 1"),
        ("max_num_queued_tokens", 1.5, "None or an integer from 1"),
        ("resume_grace_steps", -1, "an integer from 0"),
        ("ageing_steps", -1, "an integer from 0"),
        ("prefill_share", -1, "an integer from 0"),
        ("prefill_share", None, "an integer from 0"),
        ("enable_prefix_caching", 1, "True or False"),
        ("enable_prefix_caching", None, "True or False"),
        ("pinned_prefix_budget", -0.1, "a number in [0, 1]"),
        ("pinned_prefix_budget", 1.1, "a number in [0, 1]"),
        ("pinned_prefix_budget", float("nan"), "a number in [0, 1]"),
        ("pinned_prefix_budget", "1", "a number in [0, 1]"),
        ("isa", 3, "name of an op table"),
        ("model", "", "path"),
        ("model", None, "path"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value_and_what_is_allowed(
    name: str, value: object, allowed: str
) -> None:
    settings: dict[str, Any] = {"model": "m"} | {name: value}
    with pytest.raises(InvalidRequestError) as error:
        EngineConfig(**settings)
    assert str(error.value).startswith(name)
    assert repr(value) in str(error.value)
    assert allowed in str(error.value)


def test_the_pool_is_sized_one_way_only() -> None:
    with pytest.raises(InvalidRequestError, match=r"num_blocks and kv_cache_memory_bytes.* 8 and 1024"):
        EngineConfig(model="m", num_blocks=8, kv_cache_memory_bytes=1024)


def test_limits_themselves_are_allowed() -> None:
    EngineConfig(model="m", block_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=2, max_logprobs=-1)
    EngineConfig(model="m", block_size=256, num_threads=1024, seed=2**64 - 1, num_blocks=1)
    for swap_space in (None, 0, 0.0, 1e-9, 4, 2**33 - 1):
        assert EngineConfig(model="m", swap_space=swap_space).swap_space == swap_space
    for mode in ("auto", "recompute", "swap", "by_branches"):
        assert EngineConfig(model="m", preemption_mode=mode).preemption_mode == mode
    assert EngineConfig(model="m", preemption_mode=None).preemption_mode == "auto"  # type: ignore[arg-type]
    for seconds in (None, 1, 0.5, float("inf")):
        assert EngineConfig(model="m", queue_timeout=seconds).queue_timeout == seconds


def test_the_dtype_is_one_of_two_or_left_to_the_engine() -> None:
    assert [EngineConfig(model="m", dtype=dtype).dtype for dtype in ("auto", "bfloat16", "float32", "float")] == [
        "auto", "bfloat16", "float32", "float32",
    ]  # fmt: skip
    assert EngineConfig(model="m", dtype="float32", kv_cache_dtype="float").kv_cache_dtype == "float32"
    assert EngineConfig(model="m", dtype="bfloat16", kv_cache_dtype="auto").kv_cache_dtype == "auto"
    assert EngineConfig(model="m", dtype="auto", kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_keys_and_values_may_be_kept_in_8_bits_whatever_computes_them(dtype: str) -> None:
    names = ("fp8_e4m3", "fp8", "fp8_e5m2", "int8")
    assert [EngineConfig(model="m", dtype=dtype, kv_cache_dtype=name).kv_cache_dtype for name in names] == [
        "fp8_e4m3", "fp8_e4m3", "fp8_e5m2", "int8",
    ]  # fmt: skip


def test_a_dtype_of_torch_is_as_good_as_its_name() -> None:
    torch = pytest.importorskip("torch")
    assert EngineConfig(model="m", dtype=torch.bfloat16).dtype == "bfloat16"
    assert EngineConfig(model="m", kv_cache_dtype=torch.float8_e4m3fn).kv_cache_dtype == "fp8_e4m3"
    assert EngineConfig(model="m", kv_cache_dtype=torch.float8_e5m2).kv_cache_dtype == "fp8_e5m2"
    assert EngineConfig(model="m", kv_cache_dtype=torch.int8).kv_cache_dtype == "int8"
    with pytest.raises(InvalidRequestError, match=r"dtype must be .* got torch.float64"):
        EngineConfig(model="m", dtype=torch.float64)


def test_the_context_may_be_what_fits() -> None:
    assert EngineConfig(model="m", max_model_len=-1).max_model_len == -1


def test_numbers_too_long_to_print_are_refused_all_the_same() -> None:
    with pytest.raises(InvalidRequestError, match="swap_space must be None or a number of GiB"):
        EngineConfig(model="m", swap_space=10**400)


def test_a_path_object_is_as_good_as_its_string() -> None:
    assert EngineConfig(model=Path("some") / "model") == EngineConfig(model="some/model")  # type: ignore[arg-type]
