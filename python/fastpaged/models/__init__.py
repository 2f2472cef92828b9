"""The model families: a file each, written against the op set."""

from __future__ import annotations

from fastpaged.models.registry import MODELS, Model

__all__ = ["MODELS", "Model"]
