"""Every engine argument that people know: it does what it says, or says why there is nothing for it."""

from __future__ import annotations

from typing import Any

import pytest

from fastpaged import LLM, EngineArgs, EngineConfig, InvalidRequestError
from fastpaged.config.engine_args import ALIASES, NONE_IS_DEFAULT, NOT_SERVED, known_names

# Arguments that do what they say: their default as people know it, and another value.
SERVED: dict[str, tuple[object, object]] = {
    "tokenizer": (None, "org/other"),
    "skip_tokenizer_init": (False, True),
    "async_scheduling": (False, True),
    "dtype": ("auto", "float32"),
    "max_model_len": (None, -1),
    "seed": (0, 7),
    "load_format": ("auto", "dummy"),
    "revision": (None, "v1"),
    "tokenizer_revision": (None, "v1"),
    "download_dir": (None, "models"),
    "hf_token": (None, "hf_secret"),
    "hf_overrides": ({}, {"rope_theta": 1e6}),
    "served_model_name": (None, ["a", "b"]),
    "kv_cache_memory_bytes": (None, 1 << 20),
    "num_gpu_blocks_override": (None, 8),
    "block_size": (None, 32),
    "kv_cache_dtype": ("auto", "int8"),
    "max_num_seqs": (None, 8),
    "max_num_batched_tokens": (None, 512),
    "long_prefill_token_threshold": (0, 64),
    "watermark": (0.0, 0.5),
    "stream_interval": (1, 4),
    "max_logprobs": (20, -1),
    "generation_config": ("auto", "vllm"),
    "override_generation_config": ({}, {"temperature": 0.5}),
    "swap_space": (4, 0.5),
    "preemption_mode": (None, "swap"),
    "scheduling_policy": ("fcfs", "priority"),
    "max_num_queued_reqs": (None, 8),
    "max_num_queued_tokens": (None, 8),
    "enable_prefix_caching": (None, False),
    "pinned_prefix_budget": (None, 0.5),
}
# The others: the default, another value, and what is said about it.
REFUSED: dict[str, tuple[object, object, str]] = {
    "tokenizer_mode": ("auto", "slow", "a tokenizer is read from tokenizer.json or a .gguf file"),
    "trust_remote_code": (False, True, "code of a model's repository is never run"),
    "code_revision": (None, "main", "code of a model's repository is never run"),
    "quantization": (None, "awq", "a .gguf model is dequantised as it is loaded"),
    "gpu_memory_utilization": (0.92, 0.5, "see kv_cache_memory_bytes and num_blocks"),
    "prefix_caching_hash_algo": ("sha256", "xxhash", "a prefix that is found is compared token by token"),
    "prefix_match_unit": (None, 16, "a prefix is found to the token"),
    "max_num_active_seqs": (None, 8, "max_num_seqs is the limit"),
    "max_num_scheduled_tokens": (None, 512, "max_num_batched_tokens is the limit"),
    "enable_chunked_prefill": (None, False, "a long prompt is computed in pieces, which changes no answer"),
    "scheduler_cls": (None, "my.Scheduler", "there is one scheduler"),
    "scheduler_reserve_full_isl": (True, False, "a prompt is let in when all of it fits"),
    "prefill_schedule_interval": (1, 2, "prompts are scheduled at every step"),
    "tensor_parallel_size": (1, 2, "one process on one machine's CPU"),
    "pipeline_parallel_size": (1, 2, "one process on one machine's CPU"),
    "data_parallel_size": (1, 2, "one process on one machine's CPU"),
    "distributed_executor_backend": (None, "ray", "one process on one machine's CPU"),
    "enforce_eager": (False, 1, "nothing is compiled or captured"),
    "compilation_config": (None, {"level": 3}, "nothing is compiled or captured"),
    "cpu_offload_gb": (0, 4, "the model lies in the CPU's memory anyway"),
    "kv_offloading_size": (None, 4.0, "swap_space is the memory for KV blocks"),
    "kv_offloading_backend": ("native", "lmcache", "swap_space is the memory for KV blocks"),
    "enable_lora": (False, True, "there are no adapters"),
    "max_loras": (1, 4, "there are no adapters"),
    "max_lora_rank": (16, 64, "there are no adapters"),
    "max_cpu_loras": (None, 4, "there are no adapters"),
    "logprobs_mode": ("raw_logprobs", "processed_logprobs", "logprobs are of the raw logits"),
    "speculative_config": (None, {"method": "ngram"}, "there is no speculative decoding"),
    "spec_method": (None, "ngram", "there is no speculative decoding"),
    "spec_model": (None, "org/draft", "there is no speculative decoding"),
    "spec_tokens": (None, 4, "there is no speculative decoding"),
    "structured_outputs_config": ({"backend": "auto"}, {"backend": "guidance"}, "structured outputs are not there yet"),
    "kv_events_config": (None, {"publisher": "zmq"}, "events of KV blocks are sent nowhere"),
    "enable_sleep_mode": (False, True, "close() frees the memory"),
    "otlp_traces_endpoint": (None, "http://localhost", "traces are not sent"),
    "disable_sliding_window": (False, True, "a model is computed as it was trained"),
    "logits_processors": (None, ["my.Processor"], "no Python runs per token"),
    # Removed where people know them from.
    "num_scheduler_steps": (1, 8, "every step is planned"),
    "use_v2_block_manager": (True, False, "there is one block manager"),
}
OF_SAMPLING = ["best_of", "use_beam_search", "guided_decoding", "truncate_prompt_tokens"]


def config_with(**given: Any) -> EngineConfig:
    return EngineArgs("m", **given).engine_config()


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_taken_at_its_default_and_at_another_value(name: str) -> None:
    usual, other = SERVED[name]
    config_with(**{name: usual})
    assert getattr(config_with(**{name: other}), ALIASES.get(name, name)) == other


@pytest.mark.parametrize("name", REFUSED)
def test_what_there_is_nothing_for_is_taken_at_its_default_and_else_refused_with_the_reason(name: str) -> None:
    usual, other, reason = REFUSED[name]
    assert config_with(**{name: usual}) == EngineConfig(model="m")
    with pytest.raises(InvalidRequestError) as refusal:
        config_with(**{name: other})
    assert str(refusal.value).startswith(f"{name} must be ")
    assert reason in str(refusal.value)
    assert str(refusal.value).endswith(f"got {other!r}")


@pytest.mark.parametrize("name", OF_SAMPLING)
def test_a_field_of_the_sampling_params_is_called_one(name: str) -> None:
    with pytest.raises(TypeError, match=f"unknown argument '{name}'; it is a field of SamplingParams"):
        EngineArgs("m", **{name: 1})


def test_every_refusal_of_the_table_has_its_test_or_its_reason() -> None:
    assert REFUSED.keys() <= NOT_SERVED.keys()
    for name, (allowed, reason) in NOT_SERVED.items():
        assert config_with(**{name: allowed[0]}) == EngineConfig(model="m")
        assert reason, name
        with pytest.raises(InvalidRequestError, match=f"^{name} must be "):
            config_with(**{name: object()})


def test_no_name_is_in_two_places() -> None:
    assert len(known_names()) == len(set(known_names()))


@pytest.mark.parametrize("name", [*NONE_IS_DEFAULT, *ALIASES])
def test_none_is_the_default(name: str) -> None:
    assert config_with(**{name: None}) == EngineConfig(model="m")


def test_the_two_names_of_one_setting_exclude_each_other() -> None:
    assert config_with(num_gpu_blocks_override=8).num_blocks == 8
    with pytest.raises(InvalidRequestError, match="num_gpu_blocks_override is another name of num_blocks: .* 8 and 9"):
        config_with(num_gpu_blocks_override=8, num_blocks=9)


def test_one_is_not_true() -> None:
    with pytest.raises(InvalidRequestError, match="tensor_parallel_size must be 1 or None .*, got True"):
        config_with(tensor_parallel_size=True)


def test_an_unknown_name_says_what_it_may_have_meant() -> None:
    with pytest.raises(TypeError, match="unknown argument 'gpu_memory_utilisation'; did you mean 'gpu_memory_util"):
        EngineArgs("m", gpu_memory_utilisation=0.9)


def test_an_llm_refuses_what_its_arguments_do() -> None:
    with pytest.raises(InvalidRequestError, match="tensor_parallel_size must be 1"):
        LLM("nowhere", tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("tokenizer", "", "None or a non-empty string"),
        ("tokenizer", 7, "None or a non-empty string"),
        ("skip_tokenizer_init", 1, "True or False"),
        ("async_scheduling", 1, "True or False"),
        ("revision", "", "None or a non-empty string"),
        ("tokenizer_revision", 1, "None or a non-empty string"),
        ("download_dir", [], "None or a non-empty string"),
        ("load_format", "pt", "'auto' or 'safetensors' or 'gguf' or 'dummy' (of pickled weights"),
        ("load_format", ["gguf"], "'auto' or 'safetensors'"),
        ("hf_overrides", [], "a dict of names and values"),
        ("hf_overrides", {1: 2}, "a dict of names and values"),
        ("hf_overrides", print, "a dict of names and values"),
        ("generation_config", "", "'auto', 'fastpaged', 'vllm' or a folder"),
        ("override_generation_config", 3, "a dict of names and values"),
        ("served_model_name", "", "None, a non-empty string, or a list"),
        ("served_model_name", [""], "None, a non-empty string, or a list"),
        ("stream_interval", 0, "an integer from 1"),
        ("watermark", -0.1, "a number in [0, 1)"),
        ("watermark", 1, "a number in [0, 1)"),
        ("watermark", float("nan"), "a number in [0, 1)"),
        ("watermark", "0.1", "a number in [0, 1)"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_and_value(name: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        config_with(**{name: value})
    assert str(refusal.value).startswith(f"{name} must be {allowed}")
    assert str(refusal.value).endswith(f"got {value!r}")


def test_a_tokenizer_is_not_both_given_and_left_out() -> None:
    with pytest.raises(InvalidRequestError, match="tokenizer must be None when skip_tokenizer_init is True"):
        config_with(tokenizer="t", skip_tokenizer_init=True)


def test_a_token_of_the_hub_is_never_shown() -> None:
    assert "secret" not in repr(config_with(hf_token="hf_secret"))
    with pytest.raises(InvalidRequestError) as refusal:
        config_with(hf_token=["hf_secret"])
    assert "secret" not in str(refusal.value)
