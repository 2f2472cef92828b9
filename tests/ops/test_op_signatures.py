"""OpSet, GraphOps and TorchOps say the same, and no more kernels lie behind them than there may be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastpaged import _core
from fastpaged.ops.graph_ops import GraphOps
from fastpaged.ops.op_set import OpSet

torch_ops = pytest.importorskip("fastpaged.ops.torch_ops", exc_type=ModuleNotFoundError)

OP_TABLE = Path(__file__).resolve().parents[2] / "cpp" / "fastpaged" / "ops" / "op_table.h"
MAX_OPS = 16
# What an op set has beside ops: GraphOps ends its recording.
NOT_OPS: dict[type, set[str]] = {GraphOps: {"finalize"}}


def ops_of(kind: type) -> dict[str, Callable[..., Any]]:
    names = {name for name in vars(kind) if not name.startswith("_")} - NOT_OPS.get(kind, set())
    return {name: getattr(kind, name) for name in names}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults; annotations are each op set's own."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def table_entries() -> set[str]:
    """The function pointers of OpTable, but those that make a weight, which is no op of a step."""
    body = re.search(r"struct OpTable \{(.*?)^\};", OP_TABLE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert body is not None
    entries = set(re.findall(r"\(\*(\w+)\)\(", body.group(1)))
    packers = {"pack_linear", "pack_gated_linear", "packed_bytes"}
    assert packers <= entries
    return entries - packers


@pytest.mark.parametrize("kind", [GraphOps, torch_ops.TorchOps], ids=lambda kind: str(kind.__name__))
def test_an_op_set_has_the_ops_of_the_protocol_and_no_others(kind: type) -> None:
    assert ops_of(kind).keys() == ops_of(OpSet).keys()


@pytest.mark.parametrize("kind", [GraphOps, torch_ops.TorchOps], ids=lambda kind: str(kind.__name__))
def test_every_op_takes_the_arguments_of_the_protocol_by_the_same_names_and_defaults(kind: type) -> None:
    for name, op in ops_of(OpSet).items():
        assert parameters(getattr(kind, name)) == parameters(op), name


def test_every_kernel_of_the_table_can_be_called_and_recorded_by_its_name() -> None:
    for name in table_entries():
        assert callable(getattr(_core, name)), name
        assert callable(getattr(_core.ModelGraph, name)), name


def test_what_the_op_set_is_lowered_to_are_the_kernels_of_the_table_and_all_of_them() -> None:
    device = _core.CpuDevice("scalar", 1)
    graph = _core.ModelGraph(device, "float32")
    op: Any = GraphOps(graph)
    norm = np.ones(16, np.float32)

    def weight(out_features: int, in_features: int, gated: bool = False) -> _core.PackedLinear:
        return _core.PackedLinear(device, [np.ones((out_features, in_features), np.float32)], "float32", gated)

    x = op.embedding("token_ids", np.ones((9, 16), np.float32))
    qkv = op.linear(op.layer_norm(x, norm, None, 1e-5), weight(48, 16))
    a = op.attention(qkv, 0, num_heads=1, num_kv_heads=1, head_dim=16, scale=1.0)
    x = op.all_reduce(op.linear(a, weight(16, 16)), add=x)
    g = op.gated_linear(op.rms_norm(x, norm, 1e-5), weight(32, 16, gated=True), None, "silu")
    y = op.rms_norm(op.linear(g, weight(16, 16), None, "relu"), norm, 1e-5)
    x = op.rows(op.add(op.add(x, y), op.linear(g, weight(16, 16))), "sample_rows")
    logits = op.linear(x, weight(5, 16))
    op.finalize(op.soft_cap(logits, 2.0), max_num_tokens=4, max_num_samples=2)
    lowered = {line.split()[1] for line in graph.describe().splitlines()[1:]}
    assert lowered == table_entries()


def test_no_more_than_sixteen_kernels_lie_behind_the_op_set() -> None:
    assert 0 < len(table_entries()) <= MAX_OPS
    assert len(ops_of(OpSet)) <= MAX_OPS
