"""GraphOps: the op set that records a ModelGraph instead of computing.

Values are symbolic. add(x, y) of a y that linear() has just returned makes that linear add to x's buffer, and y is
never there. Any other add(x, y) returns Sum(x, y), which costs nothing: the addition is done, in place, by the norm
that reads the sum, or by an op of its own before anything else reads it. From then on x's buffer holds the sum; x
itself no longer exists, and using it is an error. soft_cap updates its buffer in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fastpaged import _core
    from fastpaged.ops.op_set import ActivationKind, HeadNorm, Precision

    FloatArray = npt.NDArray[np.float32]

RowKind = Literal["tokens", "samples"]


@dataclass(frozen=True)
class Value:
    """An array [rows, cols] of the forward pass: one row per token or per sampled token of the step."""

    buffer: int
    rows: RowKind
    cols: int
    dtype: str  # "float32" or "bfloat16"
    version: int = 0  # how often the buffer had been updated in place when this value was made


@dataclass(frozen=True)
class Sum:
    """x + y, both float32 [rows, cols]. Added up when it is first read."""

    x: Value
    y: Value


class GraphOps:
    """Records into `graph`, in its activation dtype. Every call returns the value it would have computed.

    Shapes are checked by the graph: ValueErrors name the op and what does not match.
    """

    def __init__(self, graph: _core.ModelGraph) -> None:
        self._graph = graph
        self._versions: dict[int, int] = {}
        self._added: dict[Sum, Value] = {}  # sums that were added up
        self._product: Value | None = None  # what the last op has computed, if that is a plain linear

    def embedding(
        self,
        token_ids: Literal["token_ids"],
        table: npt.NDArray[np.uint16] | FloatArray,
        *,
        position_table: FloatArray | None = None,
        scale: float = 1.0,
    ) -> Value:
        """table[token] * scale, + position_table[position] if given: float32 [tokens, hidden]."""
        if token_ids != "token_ids":
            raise ValueError(f"embedding: token_ids must be the batch's token_ids, got {token_ids!r}")
        out = self._new("tokens", table.shape[1], "float32")
        self._graph.embedding(table, out.buffer, position_table, scale)
        return out

    def rms_norm(self, x: Value | Sum, weight: FloatArray, eps: float, *, dtype: Precision = "activation") -> Value:
        """x / sqrt(mean(x^2) + eps) * weight. A Sum is added up on the way."""
        source = self._resolve(x)
        base, residual = _parts(source)
        out = self._new(base.rows, base.cols, self._dtype("rms_norm", dtype))
        self._graph.rms_norm(base.buffer, residual, weight, eps, out.buffer)
        if isinstance(source, Sum):
            self._added_up(source)
        return out

    def layer_norm(
        self,
        x: Value | Sum,
        weight: FloatArray,
        bias: FloatArray | None,
        eps: float,
        *,
        dtype: Precision = "activation",
    ) -> Value:
        """(x - mean) / sqrt(variance + eps) * weight + bias. A Sum is added up on the way."""
        source = self._resolve(x)
        base, residual = _parts(source)
        out = self._new(base.rows, base.cols, self._dtype("layer_norm", dtype))
        self._graph.layer_norm(base.buffer, residual, weight, bias, eps, out.buffer)
        if isinstance(source, Sum):
            self._added_up(source)
        return out

    def linear(
        self,
        x: Value | Sum,
        weight: _core.PackedLinear,
        bias: FloatArray | None = None,
        activation: ActivationKind | None = None,
    ) -> Value:
        """x @ weight^T + bias, float32 [rows, out_features]; with an activation, that of it in the activation dtype."""
        source = self._value(x)
        out = self._new(source.rows, weight.out_features, "float32" if activation is None else self._graph.dtype)
        self._graph.linear(source.buffer, weight, out.buffer, bias, activation)
        if activation is None:
            self._product = out
        return out

    def gated_linear(
        self, x: Value | Sum, weight: _core.PackedLinear, bias: FloatArray | None, kind: ActivationKind
    ) -> Value:
        """activation(gates) * ups of x @ weight^T + bias, in the activation dtype, [rows, features]."""
        if not weight.gated:
            raise ValueError("gated_linear: weight must be packed with its gates beside their ups, got a plain one")
        source = self._value(x)
        out = self._new(source.rows, weight.out_features // 2, self._graph.dtype)
        self._graph.linear(source.buffer, weight, out.buffer, bias, kind)
        return out

    def attention(
        self,
        qkv: Value | Sum,
        layer: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        rope: FloatArray | None = None,
        head_norm: HeadNorm | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        alibi_slopes: FloatArray | None = None,
    ) -> Value:
        """Head norm, rotary embedding, cache write and paged attention of one layer: two ops."""
        source = self._value(qkv)
        q = self._new("tokens", num_heads * head_dim, self._graph.dtype)
        out = self._new("tokens", num_heads * head_dim, self._graph.dtype)
        self._graph.rotary_cache_write(
            source.buffer,
            layer,
            q.buffer,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            cos_sin=rope,
            q_norm=None if head_norm is None else head_norm.query,
            k_norm=None if head_norm is None else head_norm.key,
            norm_eps=0.0 if head_norm is None else head_norm.eps,
        )
        self._graph.paged_attention(
            q.buffer, layer, out.buffer, scale=scale, soft_cap=soft_cap, window=window, alibi_slopes=alibi_slopes
        )
        return out

    def soft_cap(self, x: Value | Sum, cap: float) -> Value:
        """x: float32. cap * tanh(x / cap), in x's buffer."""
        source = self._value(x)
        self._graph.soft_cap(source.buffer, cap)
        return self._updated(source)

    def add(self, x: Value | Sum, y: Value | Sum) -> Value | Sum:
        """x + y, both float32 [rows, hidden]. A pending sum among them is added up first."""
        total = Sum(self._value(x), self._value(y))
        for base, term in ((total.x, total.y), (total.y, total.x)):
            if term == self._product and base != term:
                self._graph.add(base.buffer, term.buffer)
                self._updated(term)
                return self._updated(base)
        return total

    def all_reduce(self, y: Value | Sum, *, add: Value | Sum | None = None) -> Value | Sum:
        """y, or add + y: on one worker y is whole already."""
        return self._value(y) if add is None else self.add(add, y)

    def rows(self, x: Value | Sum, sample_rows: Literal["sample_rows"]) -> Value | Sum:
        """The rows of x that are sampled. Of a Sum not yet added up, both parts."""
        if sample_rows != "sample_rows":
            raise ValueError(f"rows: sample_rows must be the batch's sample_rows, got {sample_rows!r}")
        source = self._resolve(x)
        if isinstance(source, Sum):
            return Sum(self._gather(source.x), self._gather(source.y))
        return self._gather(source)

    def finalize(self, output: Value | Sum, *, max_num_tokens: int, max_num_samples: int) -> None:
        """Ends the recording. output: float32 [samples, vocab]."""
        self._graph.finalize(self._value(output).buffer, max_num_tokens, max_num_samples)

    def _new(self, rows: RowKind, cols: int, dtype: str) -> Value:
        self._product = None
        return Value(self._graph.buffer(rows, cols, dtype), rows, cols, dtype)

    def _dtype(self, op: str, precision: Precision) -> str:
        if precision not in ("activation", "float32"):
            raise ValueError(f"{op}: dtype must be 'activation' or 'float32', got {precision!r}")
        return "float32" if precision == "float32" else self._graph.dtype

    def _gather(self, x: Value) -> Value:
        out = self._new("samples", x.cols, x.dtype)
        self._graph.gather_rows(x.buffer, out.buffer)
        return out

    def _updated(self, x: Value) -> Value:
        self._product = None
        version = x.version + 1
        self._versions[x.buffer] = version
        return Value(x.buffer, x.rows, x.cols, x.dtype, version)

    def _added_up(self, total: Sum) -> Value:
        """What stands for a sum from now on: an op has added y to x in place."""
        self._added[total] = self._updated(total.x)
        return self._added[total]

    def _value(self, x: Value | Sum) -> Value:
        """x as one array: a pending sum is added up by an op of its own."""
        source = self._resolve(x)
        if isinstance(source, Sum):
            self._graph.add(source.x.buffer, source.y.buffer)
            return self._added_up(source)
        return source

    def _resolve(self, x: Value | Sum) -> Value | Sum:
        """x as it stands now: the value of a sum that was added up, the sum itself before that."""
        if isinstance(x, Sum) and x not in self._added:
            return Sum(self._array(x.x), self._array(x.y))
        return self._array(self._added[x] if isinstance(x, Sum) else x)

    def _array(self, x: Value) -> Value:
        if not isinstance(x, Value):
            raise ValueError(f"expected a value of this graph, got {type(x).__name__}")
        if self._versions.get(x.buffer, 0) != x.version:
            raise ValueError(f"buffer {x.buffer} was updated in place since this value was made: use what came of it")
        return x


def _parts(source: Value | Sum) -> tuple[Value, int | None]:
    """What a norm reads, and the buffer it adds to it."""
    return (source.x, source.y.buffer) if isinstance(source, Sum) else (source, None)
