"""The ops a model is written against."""

from __future__ import annotations

from fastpaged.ops.graph_ops import BatchInputs, GraphOps, Sum, Value

__all__ = ["BatchInputs", "GraphOps", "Sum", "Value"]
