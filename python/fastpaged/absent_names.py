"""Names known from elsewhere that are not there, and why: of methods, and of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from fastpaged.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_POOLING = "no model here embeds, classifies or scores"
_NO_WORKERS = "there are no workers to reach into"
_NO_ADAPTERS = "there are no adapters"
_NO_PROFILING = "profiling is not there yet"
_NO_PAUSE = "generation cannot be paused yet; abort() ends requests"
_NO_SCHEMAS = "structured outputs are not there yet"
_NO_METRICS = (
    "an engine's `stats` count with disable_log_stats=False; a server has /metrics, a request RequestOutput.metrics"
)
_ONE_PROCESS = "the engine is one process on one machine's CPU"

OF_LLM: Mapping[str, str] = {
    "enqueue_chat": "apply the chat template with get_tokenizer(), and give enqueue() the prompt",
    "embed": _NO_POOLING,
    "encode": _NO_POOLING,
    "classify": _NO_POOLING,
    "score": _NO_POOLING,
    "reward": _NO_POOLING,
    "get_metrics": _NO_METRICS,
    "sleep": "close() frees the memory",
    "wake_up": "close() frees the memory, and a new LLM takes it again",
    "start_profile": _NO_PROFILING,
    "stop_profile": _NO_PROFILING,
    "collective_rpc": f"{_NO_WORKERS}; see LLM.engine",
    "apply_model": f"{_NO_WORKERS}; see LLM.engine",
    "shutdown": "it is called close()",
}

OF_ASYNC_LLM_ENGINE: Mapping[str, str] = {
    "encode": _NO_POOLING,
    "pause_generation": _NO_PAUSE,
    "resume_generation": _NO_PAUSE,
    "is_paused": _NO_PAUSE,
    "sleep": "shutdown() frees the memory",
    "wake_up": "shutdown() frees the memory, and a new engine takes it again",
    "is_sleeping": "shutdown() frees the memory",
    "add_lora": _NO_ADAPTERS,
    "remove_lora": _NO_ADAPTERS,
    "list_loras": _NO_ADAPTERS,
    "pin_lora": _NO_ADAPTERS,
    "add_request": "generate() queues a request and yields its outputs",
    "get_metrics": _NO_METRICS,
    "do_log_stats": _NO_METRICS,
    "start_profile": _NO_PROFILING,
    "stop_profile": _NO_PROFILING,
    "collective_rpc": _NO_WORKERS,
    "close": "it is called shutdown(), and aclose() on an event loop",
}

_TYPED_PROMPTS = 'a prompt is a string, token ids, {"prompt": str} or {"prompt_token_ids": ids}'
OF_PACKAGE: Mapping[str, str] = {
    "StructuredOutputsParams": _NO_SCHEMAS,
    "GuidedDecodingParams": _NO_SCHEMAS,
    "PoolingParams": _NO_POOLING,
    "PoolingOutput": _NO_POOLING,
    "PoolingRequestOutput": _NO_POOLING,
    "EmbeddingOutput": _NO_POOLING,
    "EmbeddingRequestOutput": _NO_POOLING,
    "ClassificationOutput": _NO_POOLING,
    "ClassificationRequestOutput": _NO_POOLING,
    "ScoringOutput": _NO_POOLING,
    "ScoringRequestOutput": _NO_POOLING,
    "LoRARequest": _NO_ADAPTERS,
    "PromptType": _TYPED_PROMPTS,
    "TextPrompt": _TYPED_PROMPTS,
    "TokensPrompt": _TYPED_PROMPTS,
    "ModelRegistry": "the families of models are those that come with it",
    "initialize_ray_cluster": _ONE_PROCESS,
}


class SaysWhyAbsent:
    """For a class some of whose methods people will look for in vain."""

    _ABSENT: ClassVar[Mapping[str, str]]  # name -> why there is none

    if not TYPE_CHECKING:  # a type checker is to complain of these all the same

        def __getattr__(self, name: str) -> NoReturn:
            owner = type(self).__name__
            if name in self._ABSENT:
                raise UnsupportedFeatureError(f"{owner} has no {name}(): {self._ABSENT[name]}")
            raise AttributeError(f"{owner!r} object has no attribute {name!r}", name=name, obj=self)
