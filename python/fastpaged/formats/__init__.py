"""Readers of model files: GGUF and safetensors. They know bytes and names, no models."""

from __future__ import annotations

from fastpaged.formats.gguf import GgufFile
from fastpaged.formats.locate import find_gguf
from fastpaged.formats.safetensors import SafetensorsFile
from fastpaged.formats.safetensors_index import ShardedSafetensors
from fastpaged.formats.stored_tensor import StoredTensor

__all__ = ["GgufFile", "SafetensorsFile", "ShardedSafetensors", "StoredTensor", "find_gguf"]
