"""A worker: one device with a model's weights and KV memory on it."""

from __future__ import annotations

from fastpaged.worker.kv_memory import KVMemory
from fastpaged.worker.worker import Worker

__all__ = ["KVMemory", "Worker"]
