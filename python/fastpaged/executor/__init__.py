"""Executors: where a plan is carried out."""

from __future__ import annotations

from fastpaged.executor.executor import Executor
from fastpaged.executor.in_process import InProcessExecutor

__all__ = ["Executor", "InProcessExecutor"]
