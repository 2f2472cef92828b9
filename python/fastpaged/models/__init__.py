"""The model families: a file each, written against the op set."""

from __future__ import annotations

from fastpaged.models.registry import FAMILIES, Model

__all__ = ["FAMILIES", "Model"]
