"""The ops a model is written against."""

from __future__ import annotations

from fastpaged.ops.graph_ops import GraphOps, Sum, Value
from fastpaged.ops.op_set import BatchInputs, HeadNorm, OpSet

__all__ = ["BatchInputs", "GraphOps", "HeadNorm", "OpSet", "Sum", "Value"]
