"""What model it is, and how the engine is set up."""

from __future__ import annotations

from fastpaged.config.dtypes import DTYPES, KV_DTYPES, DType, KVDType
from fastpaged.config.engine_args import EngineArgs
from fastpaged.config.engine_config import LOAD_FORMATS, PREEMPTION_MODES, SCHEDULING_POLICIES, EngineConfig
from fastpaged.config.model_config import ModelConfig

__all__ = [
    "DTYPES",
    "KV_DTYPES",
    "LOAD_FORMATS",
    "PREEMPTION_MODES",
    "SCHEDULING_POLICIES",
    "DType",
    "EngineArgs",
    "EngineConfig",
    "KVDType",
    "ModelConfig",
]
