"""A model with its weights as torch tensors, for TorchOps."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastpaged import _core
from fastpaged.weights.loader import load_model

if TYPE_CHECKING:
    import os

    from fastpaged.config import DType
    from fastpaged.models.registry import Model
    from fastpaged.weights.checkpoint import Checkpoint
    from fastpaged.weights.loader import Array


def load_torch_model(
    source: Checkpoint | str | os.PathLike[str],
    *,
    dtype: DType = "bfloat16",
    max_model_len: int | None = None,
    device: torch.device | str = "cpu",
) -> Model[Any]:
    """As load_model(), whose errors it has too. device: where the tensors lie."""
    cpu = _core.CpuDevice(_core.default_isa(), _core.available_cpus())
    model: Any = load_model(source, cpu, dtype=dtype, max_model_len=max_model_len, pack=_stacked)
    loaded: Model[Any] = replace(model, weights=_as_tensors(model.weights, device))
    return loaded


def _stacked(parts: list[Array]) -> torch.Tensor:
    """Copied: the arrays are the loader's own."""
    return tensor_of(np.concatenate(parts))


def tensor_of(array: Array) -> torch.Tensor:
    """The same memory, as float32 or, of bits in uint16, as bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _as_tensors(weights: Any, device: torch.device | str) -> Any:
    """Every array in a tree of dataclasses and tuples; what else is in it stays."""
    if isinstance(weights, np.ndarray):
        return tensor_of(weights).to(device)
    if isinstance(weights, torch.Tensor):
        return weights.to(device)
    if isinstance(weights, tuple):
        values = [_as_tensors(value, device) for value in weights]
        return type(weights)(*values) if hasattr(weights, "_fields") else tuple(values)
    if is_dataclass(weights) and not isinstance(weights, type):
        named = {field.name: _as_tensors(getattr(weights, field.name), device) for field in fields(weights)}
        return replace(weights, **named)
    return weights
