"""GraphOps: the ops a model's forward() calls, recording a ModelGraph instead of computing.

Values are symbolic. all_reduce(y, add=x) returns Sum(x, y), which costs nothing: the addition is done, in place, by the
rms_norm that reads the sum. From then on x's buffer holds the sum; x itself no longer exists, and using it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fastpaged import _core

RowKind = Literal["tokens", "samples"]
DType = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Value:
    """An array [rows, cols] of the forward pass: one row per token or per sampled token of the step."""

    buffer: int
    rows: RowKind
    cols: int
    dtype: DType
    version: int = 0  # how often the buffer had been updated in place when this value was made


@dataclass(frozen=True)
class Sum:
    """x + y, both float32 [rows, cols]. Added up by the first rms_norm that reads it."""

    x: Value
    y: Value


@dataclass(frozen=True)
class BatchInputs:
    """The arrays of a step that a model may name; the others reach their ops by themselves."""

    token_ids: Literal["token_ids"] = "token_ids"
    sample_rows: Literal["sample_rows"] = "sample_rows"


class GraphOps:
    """Records into `graph`. Every call returns the value it would have computed.

    Shapes are checked by the graph: ValueErrors name the op and what does not match.
    """

    def __init__(self, graph: _core.ModelGraph) -> None:
        self._graph = graph
        self._versions: dict[int, int] = {}
        self._added: dict[Sum, Value] = {}  # sums that an rms_norm has added up

    def embedding(self, token_ids: Literal["token_ids"], table: npt.NDArray[np.uint16]) -> Value:
        """table: [vocab, hidden] bfloat16 bits. Returns [tokens, hidden] float32."""
        if token_ids != "token_ids":
            raise ValueError(f"embedding: token_ids must be the batch's token_ids, got {token_ids!r}")
        out = self._new("tokens", table.shape[1], "float32")
        self._graph.embedding(table, out.buffer)
        return out

    def rms_norm(self, x: Value | Sum, weight: npt.NDArray[np.float32], eps: float) -> Value:
        """Returns the norm in bfloat16. A Sum is added up on the way."""
        source = self._resolve(x)
        base = source.x if isinstance(source, Sum) else source
        out = self._new(base.rows, base.cols, "bfloat16")
        if isinstance(source, Sum):
            self._graph.rms_norm(base.buffer, source.y.buffer, weight, eps, out.buffer)
            self._added[source] = self._updated(base)
        else:
            self._graph.rms_norm(base.buffer, None, weight, eps, out.buffer)
        return out

    def linear(self, x: Value, weight: _core.PackedLinear) -> Value:
        """x: bfloat16 [rows, in_features]. Returns float32 [rows, out_features]."""
        out = self._new(x.rows, weight.out_features, "float32")
        self._graph.linear(self._array(x).buffer, weight, out.buffer)
        return out

    def attention(
        self, qkv: Value, layer: int, rope: npt.NDArray[np.float32], *, num_heads: int, scale: float
    ) -> Value:
        """Rotary embedding, cache write and paged attention of one layer.

        qkv: float32 [tokens, (num_heads + 2 num_kv_heads) * head_dim]; rope: [positions, head_dim], cosines then sines.
        Returns bfloat16 [tokens, num_heads * head_dim].
        """
        cols = num_heads * rope.shape[1]
        q = self._new("tokens", cols, "bfloat16")
        out = self._new("tokens", cols, "bfloat16")
        self._graph.rotary_cache_write(self._array(qkv).buffer, rope, layer, q.buffer)
        self._graph.paged_attention(q.buffer, layer, scale, out.buffer)
        return out

    def gated_activation(self, gate_up: Value, activation: str) -> Value:
        """gate_up: float32 [rows, 2 F], gates first. Returns activation(gate) * up, bfloat16 [rows, F]."""
        out = self._new(gate_up.rows, gate_up.cols // 2, "bfloat16")
        self._graph.gated_activation(self._array(gate_up).buffer, activation, out.buffer)
        return out

    def all_reduce(self, y: Value, *, add: Value | Sum) -> Sum:
        """add + y, with y summed over the workers: on one worker y is whole already."""
        x = self._resolve(add)
        if isinstance(x, Sum):
            raise ValueError("all_reduce: add must be a value or a sum that an rms_norm has read, got a pending sum")
        return Sum(x, self._array(y))

    def rows(self, x: Value | Sum, sample_rows: Literal["sample_rows"]) -> Value | Sum:
        """The rows of x that are sampled. Of a Sum not yet added up, both parts."""
        if sample_rows != "sample_rows":
            raise ValueError(f"rows: sample_rows must be the batch's sample_rows, got {sample_rows!r}")
        source = self._resolve(x)
        if isinstance(source, Sum):
            return Sum(self._gather(source.x), self._gather(source.y))
        return self._gather(source)

    def finalize(self, output: Value, *, max_num_tokens: int, max_num_samples: int) -> None:
        """Ends the recording. output: float32 [samples, vocab]."""
        self._graph.finalize(self._array(output).buffer, max_num_tokens, max_num_samples)

    def _new(self, rows: RowKind, cols: int, dtype: DType) -> Value:
        return Value(self._graph.buffer(rows, cols, dtype), rows, cols, dtype)

    def _gather(self, x: Value) -> Value:
        out = self._new("samples", x.cols, x.dtype)
        self._graph.gather_rows(x.buffer, out.buffer)
        return out

    def _updated(self, x: Value) -> Value:
        version = x.version + 1
        self._versions[x.buffer] = version
        return Value(x.buffer, x.rows, x.cols, x.dtype, version)

    def _resolve(self, x: Value | Sum) -> Value | Sum:
        """x as it stands now: the value of a sum that was added up, the sum itself before that."""
        if isinstance(x, Sum) and x not in self._added:
            return Sum(self._array(x.x), self._array(x.y))
        return self._array(self._added[x] if isinstance(x, Sum) else x)

    def _array(self, x: Value) -> Value:
        if not isinstance(x, Value):
            raise ValueError(f"expected a value, got {type(x).__name__}: a sum is read by rms_norm, rows or all_reduce")
        if self._versions.get(x.buffer, 0) != x.version:
            raise ValueError(f"buffer {x.buffer} was updated in place since this value was made: use the sum instead")
        return x
