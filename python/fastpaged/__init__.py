"""fastpaged: an LLM serving engine after the PagedAttention paper.

`import fastpaged` is quick: what is heavy (the engine, numpy, tokenizers) is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpaged._core import __version__
    from fastpaged.beam_search_params import BeamSearchParams
    from fastpaged.config import EngineArgs, EngineConfig
    from fastpaged.config import EngineArgs as AsyncEngineArgs
    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.engine.async_llm_engine import AsyncLLMEngine as AsyncLLM
    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.engine.pinned_prefixes import PinnedPrefix
    from fastpaged.errors import (
        EngineBusyError,
        EngineClosedError,
        EngineDeadError,
        FastpagedError,
        InvalidRequestError,
        ModelFormatError,
        ModelNotFoundError,
        QueueOverflowError,
        RequestLostError,
        StepFailedError,
        UnsupportedFeatureError,
    )
    from fastpaged.kv_events import AllBlocksCleared, BlockMoved, BlockRemoved, BlockStored, KVEvents
    from fastpaged.kv_snapshot import KVSnapshot
    from fastpaged.llm import LLM
    from fastpaged.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        CompletionOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
    )
    from fastpaged.sampling_params import RequestOutputKind, SamplingParams

__all__ = [
    "LLM",
    "AllBlocksCleared",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "BlockMoved",
    "BlockRemoved",
    "BlockStored",
    "CompletionOutput",
    "EngineArgs",
    "EngineBusyError",
    "EngineClosedError",
    "EngineConfig",
    "EngineDeadError",
    "FastpagedError",
    "InvalidRequestError",
    "KVEvents",
    "KVSnapshot",
    "LLMEngine",
    "Logprob",
    "ModelFormatError",
    "ModelNotFoundError",
    "PinnedPrefix",
    "QueueOverflowError",
    "RequestLostError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StepFailedError",
    "UnsupportedFeatureError",
    "__version__",
]

_OTHER_NAMES = {"AsyncLLM": "AsyncLLMEngine", "AsyncEngineArgs": "EngineArgs"}


def _home(name: str) -> str:
    """The module a public name lives in."""
    match name:
        case "__version__":
            return "fastpaged._core"
        case "LLM":
            return "fastpaged.llm"
        case "AsyncLLMEngine":
            return "fastpaged.engine.async_llm_engine"
        case "LLMEngine":
            return "fastpaged.engine.llm_engine"
        case "PinnedPrefix":
            return "fastpaged.engine.pinned_prefixes"
        case "KVSnapshot":
            return "fastpaged.kv_snapshot"
        case "KVEvents" | "BlockStored" | "BlockRemoved" | "BlockMoved" | "AllBlocksCleared":
            return "fastpaged.kv_events"
        case "EngineArgs" | "EngineConfig":
            return "fastpaged.config"
        case "BeamSearchParams":
            return "fastpaged.beam_search_params"
        case "SamplingParams" | "RequestOutputKind":
            return "fastpaged.sampling_params"
        case _ if name.endswith("Error"):
            return "fastpaged.errors"
        case _:
            return "fastpaged.outputs"


def __getattr__(name: str) -> object:
    if name not in __all__:
        from fastpaged.absent_names import OF_PACKAGE

        if name in OF_PACKAGE:
            from fastpaged.errors import UnsupportedFeatureError

            raise UnsupportedFeatureError(f"fastpaged has no {name}: {OF_PACKAGE[name]}")
        raise AttributeError(f"module 'fastpaged' has no attribute {name!r}")
    real_name = _OTHER_NAMES.get(name, name)
    value: object = getattr(import_module(_home(real_name)), real_name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
