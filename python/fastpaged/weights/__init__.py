"""From model files to packed weights."""

from __future__ import annotations

from fastpaged.weights.checkpoint import Checkpoint, open_checkpoint
from fastpaged.weights.loader import load_model

__all__ = ["Checkpoint", "load_model", "open_checkpoint"]
