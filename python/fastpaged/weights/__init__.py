"""From a model's name to packed weights."""

from __future__ import annotations

from fastpaged.weights.checkpoint import Checkpoint, open_checkpoint
from fastpaged.weights.loader import load_model
from fastpaged.weights.local_model import local_model

__all__ = ["Checkpoint", "load_model", "local_model", "open_checkpoint"]
