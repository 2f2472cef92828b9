"""The cases: each calls one op, or a few that belong together, on x of the tokens at hand.

A case returns float32 [tokens, columns]. Shapes fit no vector length, features come one by one and together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from fastpaged.ops.op_set import ActivationKind, HeadNorm, OpSet
from op_cases.weights import CaseWeights

Forward = Callable[[OpSet, CaseWeights], Any]


@dataclass(frozen=True)
class Case:
    """name: of the op and what is special. kv: KV heads and head size, if there is a cache.

    slack: how many times the error that sums in float32 leave, where the inputs are large beside the result.
    """

    name: str
    forward: Forward
    kv: tuple[int, int] | None = None
    slack: float = 1.0


@dataclass(frozen=True)
class Attention:
    """Sizes and options of an attention case. rotary: 0 for none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: int = 0
    head_norm: bool = False
    window: int = 0
    soft_cap: float = 0.0
    alibi: bool = False
    loudness: float = 1.0


LAYER = 1  # of two

ATTENTION: dict[str, Attention] = {
    "multi-head, size 32": Attention(3, 3, 32, rotary=32),
    "grouped, size 64": Attention(6, 2, 64, rotary=64),
    "multi-query, size 64": Attention(5, 1, 64, rotary=64),
    "size 80, partly rotated": Attention(2, 2, 80, rotary=32),
    "size 96, oddly rotated": Attention(2, 1, 96, rotary=26),
    "size 112, not rotated": Attention(2, 2, 112),
    "size 128, head norm": Attention(4, 1, 128, rotary=128, head_norm=True),
    "size 256, window of a few, head norm": Attention(2, 1, 256, rotary=256, head_norm=True, window=5),
    "size 16, head norm alone": Attention(2, 2, 16, head_norm=True),
    "window of one": Attention(4, 2, 32, rotary=32, window=1),
    "window of a block": Attention(4, 2, 32, rotary=32, window=16),
    "window of a span": Attention(2, 2, 48, rotary=48, window=256),
    "window over a span": Attention(4, 1, 64, rotary=64, window=270),
    "soft cap": Attention(2, 2, 64, rotary=64, soft_cap=5.0, loudness=3.0),
    "alibi": Attention(8, 8, 32, alibi=True),
    "alibi, multi-query": Attention(5, 1, 64, alibi=True),
    "everything": Attention(6, 3, 48, rotary=16, head_norm=True, window=40, soft_cap=2.0, alibi=True),
}


def attention(options: Attention) -> Forward:
    o = options

    def forward(op: OpSet, w: CaseWeights) -> Any:
        cols = (o.num_heads + 2 * o.num_kv_heads) * o.head_dim
        x = w.activations(op, 24)
        # Queries and keys of deviation 1, or louder; in float32, as no table could give them.
        qkv = op.linear(x, w.linear("qkv", cols, 24), w.vector("bias", cols, scale=0.1, offset=0.0))
        if o.loudness != 1.0:
            qkv = op.add(qkv, op.linear(x, w.linear("more", cols, 24)))
            qkv = op.rms_norm(qkv, w.vector("loudness", cols, scale=0.0, offset=o.loudness), 1e-5, dtype="float32")
        norms = HeadNorm(w.vector("q_norm", o.head_dim), w.vector("k_norm", o.head_dim), 1e-6)
        attended = op.attention(
            qkv,
            LAYER,
            num_heads=o.num_heads,
            num_kv_heads=o.num_kv_heads,
            head_dim=o.head_dim,
            scale=o.head_dim**-0.5,
            rope=w.rope(o.rotary) if o.rotary else None,
            head_norm=norms if o.head_norm else None,
            window=o.window,
            soft_cap=o.soft_cap,
            alibi_slopes=w.vector("slopes", o.num_heads, scale=0.1, offset=0.25) if o.alibi else None,
        )
        return w.read(op, attended, o.num_heads * o.head_dim)

    return forward


def embedding(cols: int, *, scale: float = 1.0, positions: bool = False) -> Forward:
    def forward(op: OpSet, w: CaseWeights) -> Any:
        position_table = w.float_table("positions", cols) if positions else None
        return op.embedding("token_ids", w.table("table", cols), position_table=position_table, scale=scale)

    return forward


def rms_norm(cols: int, *, eps: float = 1e-5, scale: float = 1.0) -> Forward:
    def forward(op: OpSet, w: CaseWeights) -> Any:
        return w.read(op, op.rms_norm(w.x(op, cols, scale=scale), w.vector("weight", cols), eps), cols)

    return forward


def layer_norm(cols: int, *, bias: bool = True, offset: float = 0.0) -> Forward:
    def forward(op: OpSet, w: CaseWeights) -> Any:
        x = w.x(op, cols, offset=offset)
        return w.read(
            op, op.layer_norm(x, w.vector("weight", cols), w.vector("bias", cols) if bias else None, 1e-5), cols
        )

    return forward


def norm_in_float32(op: OpSet, w: CaseWeights) -> Any:
    x = w.x(op, 33)
    first = op.rms_norm(x, w.vector("first", 33), 1e-5, dtype="float32")
    return op.add(first, op.layer_norm(x, w.vector("second", 33), None, 1e-5, dtype="float32"))


def norm_of_a_sum(kind: str, cols: int) -> Forward:
    """The norm, and what the sum is to those who read it later."""

    def forward(op: OpSet, w: CaseWeights) -> Any:
        total = op.all_reduce(w.x(op, cols, "y"), add=w.x(op, cols))
        weight = w.vector("weight", cols)
        h = op.rms_norm(total, weight, 1e-5) if kind == "rms" else op.layer_norm(total, weight, weight, 1e-5)
        return op.add(total, w.read(op, h, cols))

    return forward


def linear(outputs: int, inputs: int, *, bias: bool = False) -> Forward:
    def forward(op: OpSet, w: CaseWeights) -> Any:
        x = w.activations(op, inputs)
        return op.linear(x, w.linear("weight", outputs, inputs), w.vector("bias", outputs) if bias else None)

    return forward


def activated_linear(kind: ActivationKind, outputs: int, inputs: int, *, scale: float, bias: bool) -> Forward:
    """scale: of the biases, which make arguments of any size."""

    def forward(op: OpSet, w: CaseWeights) -> Any:
        biases = w.vector("bias", outputs, scale=scale, offset=0.0) if bias else None
        h = op.linear(w.activations(op, inputs), w.linear("weight", outputs, inputs), biases, kind)
        return w.read(op, h, outputs)

    return forward


def gated_linear(kind: ActivationKind, outputs: int, inputs: int, *, bias: bool = False) -> Forward:
    def forward(op: OpSet, w: CaseWeights) -> Any:
        biases = w.vector("bias", 2 * outputs) if bias else None
        g = op.gated_linear(w.activations(op, inputs), w.gated_linear("weight", outputs, inputs), biases, kind)
        return w.read(op, g, outputs)

    return forward


def linear_added(outputs: int, inputs: int, *, bias: bool = False) -> Forward:
    """To something, and something else to the sum."""

    def forward(op: OpSet, w: CaseWeights) -> Any:
        y = linear(outputs, inputs, bias=bias)(op, w)
        return op.add(op.all_reduce(y, add=w.x(op, outputs, "stream")), w.x(op, outputs, "other"))

    return forward


def soft_cap(cols: int, cap: float, scale: float = 20.0) -> Forward:
    return lambda op, w: op.soft_cap(w.x(op, cols, scale=scale), cap)


def add(cols: int) -> Forward:
    return lambda op, w: op.add(
        op.add(w.x(op, cols), w.x(op, cols, "y")), op.add(w.x(op, cols, "z"), w.x(op, cols, "w"))
    )


def _all() -> Iterator[Case]:
    for cols in (1, 16, 33, 576):
        yield Case(f"embedding of {cols}", embedding(cols))
        yield Case(f"rms_norm of {cols}", rms_norm(cols))
        yield Case(f"layer_norm of {cols}", layer_norm(cols))
        yield Case(f"add of {cols}", add(cols))
    yield Case("embedding, scaled", embedding(30, scale=5.65))
    yield Case("embedding, positions", embedding(30, positions=True))
    yield Case("embedding, scaled, positions", embedding(65, scale=0.1, positions=True))
    yield Case("rms_norm of tiny numbers", rms_norm(40, eps=1e-6, scale=1e-4))
    yield Case("rms_norm of large numbers", rms_norm(40, scale=1e17))
    yield Case("layer_norm without bias", layer_norm(47, bias=False))
    yield Case("layer_norm far from zero", layer_norm(100, offset=100.0))
    yield Case("layer_norm very far from zero", layer_norm(768, offset=1000.0), slack=3.0)
    yield Case("norms in float32", norm_in_float32)
    for kind in ("rms", "layer"):
        for cols in (16, 47, 130):
            yield Case(f"{kind}_norm of a sum of {cols}", norm_of_a_sum(kind, cols))
    for outputs, inputs in ((1, 1), (17, 31), (16, 2), (49, 63), (33, 95), (80, 64), (70, 577)):
        yield Case(f"linear {outputs}x{inputs}", linear(outputs, inputs))
    yield Case("linear with bias", linear(45, 37, bias=True))
    for outputs, inputs in ((1, 1), (45, 37), (96, 64)):
        yield Case(f"linear {outputs}x{inputs}, added", linear_added(outputs, inputs))
    yield Case("linear with bias, added", linear_added(33, 20, bias=True))
    for kind in get_args(ActivationKind):
        yield Case(f"linear {kind}", activated_linear(kind, 45, 37, scale=3.0, bias=False))
        yield Case(f"linear {kind}, large", activated_linear(kind, 16, 32, scale=40.0, bias=True))
        yield Case(f"linear {kind}, cube too large", activated_linear(kind, 20, 33, scale=1e14, bias=True))
        yield Case(f"gated_linear {kind}", gated_linear(kind, 37, 50))
        yield Case(f"gated_linear {kind}, with bias", gated_linear(kind, 48, 31, bias=True))
    for outputs in (1, 16, 17, 63, 130):
        yield Case(f"gated_linear of {outputs}", gated_linear("silu", outputs, 34))
    yield Case("soft_cap of 30", soft_cap(50, 30.0))
    yield Case("soft_cap of 1", soft_cap(7, 1.0))
    yield Case("soft_cap, quotient too large", soft_cap(19, 1e-3, scale=1e36))
    for name, options in ATTENTION.items():
        yield Case(f"attention, {name}", attention(options), (options.num_kv_heads, options.head_dim))


CASES: dict[str, Case] = {case.name: case for case in _all()}
