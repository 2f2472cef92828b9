"""The dtypes a model is computed in: of its weights, its activations and its KV cache."""

from __future__ import annotations

from typing import Literal

DType = Literal["bfloat16", "float32"]


def compute_dtype(dtype: str) -> DType:
    """What EngineConfig.dtype stands for."""
    return "float32" if dtype == "float32" else "bfloat16"


def element_bytes(dtype: DType) -> int:
    """Bytes of one element."""
    return 2 if dtype == "bfloat16" else 4
