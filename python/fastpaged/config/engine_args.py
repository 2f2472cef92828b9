"""The engine's arguments by the names people know: fields of EngineConfig, other names of these, and what there is no
need of or no use for here."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fastpaged.config.engine_config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.param_checks import not_served
from fastpaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
    "num_gpu_blocks_override": "num_blocks",
    "max_num_queued_reqs": "max_num_queued_requests",
}
# Fields of EngineConfig with a default that None stands for.
NONE_IS_DEFAULT = (
    "block_size", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "seed", "dtype",
    "kv_cache_dtype", "load_format", "generation_config", "hf_overrides", "override_generation_config", "max_logprobs",
    "skip_tokenizer_init", "stream_interval", "async_scheduling", "watermark", "packed_cache", "enable_prefix_caching",
    "pinned_prefix_budget", "scheduling_policy", "ageing_steps", "resume_grace_steps", "prefill_share",
    "kv_events",
)  # fmt: skip

_ONE_PROCESS = "the engine is one process on one machine's CPU, whose cores num_threads sets"
_NO_DRAFTS = "there is no speculative decoding"
_NO_ADAPTERS = "there are no adapters"
_OWN_TOKENIZERS = (
    "a tokenizer is read from tokenizer.json or a .gguf file; of a model that has neither, give the one of another as "
    "tokenizer"
)
_NOTHING_COMPILED = "nothing is compiled or captured: every step runs a recorded graph"

# Arguments that there is nothing to do for: what they may be all the same, and why nothing else.
NOT_SERVED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "tokenizer_mode": (("auto", "hf", None), _OWN_TOKENIZERS),
    "trust_remote_code": ((False, None), "code of a model's repository is never run"),
    "code_revision": ((None,), "code of a model's repository is never run"),
    "quantization": ((None,), "a .gguf model is dequantised as it is loaded, with no argument"),
    "gpu_memory_utilization": (
        (0.92, 0.9, None),
        "the KV pool is sized from the free memory of the CPU; see kv_cache_memory_bytes and num_blocks",
    ),
    "prefix_caching_hash_algo": (
        ("sha256", None), "a prefix that is found is compared token by token, so that no hash is relied on"
    ),
    "prefix_match_unit": ((None,), "a prefix is found to the token: what a block shares with a prompt is copied"),
    "max_num_active_seqs": ((None,), "max_num_seqs is the limit"),
    "max_num_scheduled_tokens": ((None,), "max_num_batched_tokens is the limit"),
    "enable_chunked_prefill": (
        (None, True),
        "a long prompt is computed in pieces, which changes no answer; for whole ones, see max_num_batched_tokens",
    ),
    "scheduler_cls": ((None,), "there is one scheduler"),
    "scheduler_reserve_full_isl": ((True, None), "a prompt is let in when all of it fits"),
    "prefill_schedule_interval": ((1, None), "prompts are scheduled at every step"),
    "tensor_parallel_size": ((1, None), _ONE_PROCESS),
    "pipeline_parallel_size": ((1, None), _ONE_PROCESS),
    "data_parallel_size": ((1, None), _ONE_PROCESS),
    "distributed_executor_backend": ((None, "uni"), _ONE_PROCESS),
    "enforce_eager": ((False, True, None), _NOTHING_COMPILED),
    "compilation_config": ((None, {}, 0, 1, 2, 3), _NOTHING_COMPILED),
    "cpu_offload_gb": ((0, 0.0, None), "the model lies in the CPU's memory anyway"),
    "kv_offloading_size": ((None,), "swap_space is the memory for KV blocks beside the pool"),
    "kv_offloading_backend": (("native", None), "swap_space is the memory for KV blocks beside the pool"),
    "enable_lora": ((False, None), _NO_ADAPTERS),
    "max_loras": ((1, None), _NO_ADAPTERS),
    "max_lora_rank": ((16, None), _NO_ADAPTERS),
    "max_cpu_loras": ((None,), _NO_ADAPTERS),
    "logprobs_mode": (("raw_logprobs", None), "logprobs are of the raw logits"),
    "speculative_config": ((None,), _NO_DRAFTS),
    "spec_method": ((None,), _NO_DRAFTS),
    "spec_model": ((None,), _NO_DRAFTS),
    "spec_tokens": ((None,), _NO_DRAFTS),
    "structured_outputs_config": ((None, {}, {"backend": "auto"}), "structured outputs are not there yet"),
    "kv_events_config": ((None,), "events of KV blocks are sent nowhere; kv_events=True keeps them for kv_events()"),
    "enable_sleep_mode": ((False, None), "close() frees the memory"),
    "otlp_traces_endpoint": ((None,), "traces are not sent"),
    "disable_sliding_window": ((False, None), "a model is computed as it was trained"),
    "logits_processors": ((None, []), "no Python runs per token; see SamplingParams.logit_bias and allowed_token_ids"),
    # Gone from where people know them.
    "num_scheduler_steps": ((1, None), "every step is planned"),
    "use_v2_block_manager": ((True, None), "there is one block manager"),
    "guided_decoding_backend": ((None,), "structured outputs are not there yet"),
    "max_seq_len_to_capture": ((None,), _NOTHING_COMPILED),
    "disable_custom_all_reduce": ((False, True, None), _ONE_PROCESS),
    "device": (("auto", "cpu", None), "the engine runs on the CPU"),
    "worker_use_ray": ((False, None), _ONE_PROCESS),
    "rope_scaling": ((None,), "give hf_overrides={'rope_scaling': ...}"),
    "rope_theta": ((None,), "give hf_overrides={'rope_theta': ...}"),
}  # fmt: skip


@dataclass(frozen=True, init=False)
class EngineArgs:
    """Arguments of an engine, as LLM(...) takes them: EngineArgs("MODEL", max_model_len=4096).

    Making it checks nothing but the names, of which an unknown one is a TypeError naming it and what it may have meant.
    """

    model: str
    given: Mapping[str, object]

    def __init__(self, model: str, **given: object) -> None:
        for name in given:
            if name not in known_names():
                raise TypeError(_unknown(name))
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "given", dict(given))

    def engine_config(self) -> EngineConfig:
        """Raises InvalidRequestError for a value out of range, or one that there is nothing for, with the reason."""
        settings: dict[str, Any] = {}
        for name, value in self.given.items():
            if name in NOT_SERVED:
                not_served(name, value, *NOT_SERVED[name])
                continue
            field = ALIASES.get(name, name)
            if value is None and name in (*NONE_IS_DEFAULT, *ALIASES):
                continue
            if field != name and self.given.get(field) is not None:
                both = f"{value!r} and {self.given[field]!r}"
                raise InvalidRequestError(f"{name} is another name of {field}: give one, got {both}")
            settings[field] = value
        return EngineConfig(model=self.model, **settings)


def known_names() -> list[str]:
    """Every argument that is understood beside `model`, whether it is served or not."""
    return [*_field_names(), *ALIASES, *NOT_SERVED]


def _field_names() -> list[str]:
    return [field.name for field in fields(EngineConfig) if field.name != "model"]


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, known_names())
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {_field_names()}"
    if name in {field.name for field in fields(SamplingParams)}:
        hint = "it is a field of SamplingParams"
    return f"LLM() got an unknown argument {name!r}; {hint}"
