"""What GraphOps records, and what it refuses to record."""

from __future__ import annotations

import numpy as np
import pytest

from fastpaged import _core
from fastpaged.ops.graph_ops import GraphOps, Sum, Value
from fastpaged.ops.op_set import BatchInputs, HeadNorm

BATCH = BatchInputs()
TABLE = np.zeros((11, 16), np.uint16)
WEIGHT = np.ones(16, np.float32)


class Recorder:
    """A graph being recorded, and a square weight."""

    def __init__(self, dtype: str = "bfloat16") -> None:
        self.device = _core.CpuDevice("scalar", 1)
        self.graph = _core.ModelGraph(self.device, dtype)
        self.op = GraphOps(self.graph)
        self.square = _core.PackedLinear(self.device, [np.zeros((16, 16), np.uint16)], dtype)
        self.x = self.op.embedding(BATCH.token_ids, TABLE if dtype == "bfloat16" else TABLE.astype(np.float32))

    def branch(self, x: Value | Sum) -> Value:
        return self.op.linear(self.op.rms_norm(x, WEIGHT, 0.0), self.square)

    def lines(self) -> list[str]:
        return [line.strip() for line in self.graph.describe().splitlines()[1:]]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_a_sum_is_added_up_by_the_norm_that_reads_it(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    assert len(recorder.lines()) == 3  # embedding, norm, linear: the sum itself costs no op
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert recorder.lines()[3].startswith("3: rms_norm eps=0  #0 += #2 -> #3")


def test_a_sum_goes_on_in_the_buffer_of_its_first_part(recorder: Recorder) -> None:
    first = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    second = recorder.op.all_reduce(recorder.branch(first), add=first)
    recorder.op.rms_norm(second, WEIGHT, 0.0)
    assert "#0 += #4" in recorder.lines()[5]


def test_a_sum_is_added_up_only_once(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert "+=" in recorder.lines()[3]
    assert recorder.lines()[4].startswith("4: rms_norm eps=0  #0 -> ")


def test_rows_of_a_sum_are_rows_of_both_parts(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(recorder.op.rows(total, BATCH.sample_rows), WEIGHT, 0.0)
    lines = recorder.lines()
    assert lines[3].startswith("3: gather_rows  #0 -> #3 [R, 16]")
    assert lines[4].startswith("4: gather_rows  #2 -> #4 [R, 16]")
    assert lines[5].startswith("5: rms_norm eps=0  #3 += #4 -> #5 [R, 16]")


def test_rows_of_a_sum_already_added_up_are_rows_of_one_buffer(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert isinstance(recorder.op.rows(total, BATCH.sample_rows), Value)
    assert recorder.lines()[4].startswith("4: gather_rows  #0 -> ")


def test_a_value_that_was_updated_in_place_cannot_be_used_again(recorder: Recorder) -> None:
    y = recorder.branch(recorder.x)
    recorder.op.rms_norm(recorder.op.all_reduce(y, add=recorder.x), WEIGHT, 0.0)
    updated = "buffer 0 was updated in place"
    with pytest.raises(ValueError, match=updated):
        recorder.op.rms_norm(recorder.x, WEIGHT, 0.0)
    with pytest.raises(ValueError, match=updated):
        recorder.op.all_reduce(y, add=recorder.x)
    with pytest.raises(ValueError, match=updated):
        recorder.op.rows(recorder.x, BATCH.sample_rows)


def test_an_older_sum_cannot_be_used_once_a_newer_one_stands_in_its_place(recorder: Recorder) -> None:
    first = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(recorder.op.all_reduce(recorder.branch(first), add=first), WEIGHT, 0.0)
    with pytest.raises(ValueError, match="buffer 0 was updated in place"):
        recorder.op.rms_norm(first, WEIGHT, 0.0)


def test_a_pending_sum_that_is_added_to_is_added_up_by_an_op_of_its_own(recorder: Recorder) -> None:
    """The parallel residual, x + attention + mlp: the second sum goes on in the same buffer."""
    attention, mlp = recorder.branch(recorder.x), recorder.branch(recorder.x)
    total = recorder.op.add(recorder.op.add(recorder.x, attention), mlp)
    lines = recorder.lines()
    assert lines[5].startswith("5: add  #0 += #2 -> #0 [T, 16] float32")
    assert len(lines) == 6
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert recorder.lines()[6].startswith("6: rms_norm eps=0  #0 += #4 -> #5")


def test_a_pending_sum_may_stand_on_either_side(recorder: Recorder) -> None:
    pending = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    other = recorder.op.rms_norm(pending, WEIGHT, 0.0, dtype="float32")
    recorder.op.layer_norm(
        recorder.op.add(other, recorder.op.add(pending, recorder.branch(pending))), WEIGHT, None, 0.0
    )
    lines = recorder.lines()
    assert lines[3].startswith("3: rms_norm eps=0  #0 += #2 -> #3 [T, 16] float32")
    assert lines[6].startswith("6: add  #0 += #5 -> #0")
    assert lines[7].startswith("7: layer_norm eps=0  #3 += #0 -> #6 [T, 16] bfloat16")


def test_a_sum_is_an_array_to_whatever_reads_it() -> None:
    recorder = Recorder("float32")
    total = recorder.op.add(recorder.x, recorder.branch(recorder.x))
    recorder.op.linear(total, recorder.square)
    recorder.op.activation(total, "relu")
    assert [line.split("  ")[0] for line in recorder.lines()[3:]] == [
        "3: add",
        "4: linear weight=[16, 16]",
        "5: activation relu",
    ]


def test_on_one_worker_a_reduction_alone_is_no_op(recorder: Recorder) -> None:
    y = recorder.branch(recorder.x)
    assert recorder.op.all_reduce(y) == y


def test_a_soft_cap_takes_the_place_of_what_it_caps(recorder: Recorder) -> None:
    y = recorder.branch(recorder.x)
    capped = recorder.op.soft_cap(y, 30.0)
    assert recorder.lines()[3].startswith("3: soft_cap cap=30  #2 -> #2 [T, 16] float32")
    with pytest.raises(ValueError, match="buffer 2 was updated in place"):
        recorder.op.add(recorder.x, y)
    with pytest.raises(ValueError, match="soft_cap: cap must be finite and > 0, got 0"):
        recorder.op.soft_cap(capped, 0.0)
    recorder.op.rms_norm(recorder.op.add(recorder.x, capped), WEIGHT, 0.0)
    assert "#0 += #2" in recorder.lines()[4]


def test_a_sum_with_a_part_that_was_updated_since_cannot_be_read(recorder: Recorder) -> None:
    y = recorder.branch(recorder.x)
    total = recorder.op.add(recorder.x, y)
    recorder.op.soft_cap(y, 1.0)
    with pytest.raises(ValueError, match="buffer 2 was updated in place"):
        recorder.op.rms_norm(total, WEIGHT, 0.0)


def test_every_option_is_recorded(recorder: Recorder) -> None:
    op, vector = recorder.op, WEIGHT
    op.embedding(BATCH.token_ids, TABLE, position_table=np.zeros((7, 16), np.float32), scale=4.0)
    h = op.layer_norm(recorder.x, vector, vector, 1e-5)
    wide = _core.PackedLinear(recorder.device, [np.zeros((64, 16), np.uint16)], "bfloat16")
    qkv = op.linear(h, wide, np.ones(64, np.float32))
    a = op.attention(
        qkv,
        0,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        scale=0.5,
        rope=np.zeros((9, 2), np.float32),
        head_norm=HeadNorm(vector, vector, 1e-6),
        window=8,
        soft_cap=50.0,
        alibi_slopes=vector[:2],
    )
    assert (a.cols, a.dtype) == (32, "bfloat16")
    op.attention(qkv, 1, num_heads=2, num_kv_heads=1, head_dim=16, scale=0.5)
    op.gated_activation(op.linear(h, recorder.square), "gelu_tanh")
    assert [line.split(" -> ")[0].split("  ")[0] for line in recorder.lines()[1:]] == [
        "1: embedding vocab=11 scale=4 positions=7",
        "2: layer_norm eps=1e-05 bias",
        "3: linear weight=[64, 16] bias",
        "4: rotary_cache_write layer=0 rotary=2 norm_eps=1e-06",
        "5: paged_attention layer=0 scale=0.5 window=8 soft_cap=50 alibi",
        "6: rotary_cache_write layer=1",
        "7: paged_attention layer=1 scale=0.5",
        "8: linear weight=[16, 16]",
        "9: gated_activation gelu_tanh",
    ]


def test_a_norm_may_stay_in_float32(recorder: Recorder) -> None:
    assert recorder.op.rms_norm(recorder.x, WEIGHT, 0.0, dtype="float32").dtype == "float32"
    assert recorder.op.layer_norm(recorder.x, WEIGHT, None, 0.0, dtype="float32").dtype == "float32"
    with pytest.raises(ValueError, match="rms_norm: dtype must be 'activation' or 'float32', got 'bfloat16'"):
        recorder.op.rms_norm(recorder.x, WEIGHT, 0.0, dtype="bfloat16")  # type: ignore[arg-type]


def test_a_graph_in_float32_takes_float32_alone() -> None:
    recorder = Recorder("float32")
    assert recorder.op.rms_norm(recorder.x, WEIGHT, 0.0).dtype == "float32"
    with pytest.raises(ValueError, match="embedding: table must be a float32 array"):
        recorder.op.embedding(BATCH.token_ids, TABLE)
    with pytest.raises(ValueError, match="linear: weight must be packed as float32, as the graph computes, got bfloat"):
        recorder.op.linear(recorder.x, Recorder().square)
    with pytest.raises(ValueError, match="buffer: dtype must be float32, got bfloat16"):
        recorder.graph.buffer("tokens", 4, "bfloat16")
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'bfloat16', got 'float16'"):
        Recorder("float16")


def test_a_shape_that_does_not_fit_is_named_when_it_is_recorded(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="rms_norm: weight .*= 16, got 15"):
        recorder.op.rms_norm(recorder.x, WEIGHT[:15], 0.0)
    with pytest.raises(ValueError, match="linear: x must be bfloat16"):
        recorder.op.linear(recorder.x, recorder.square)
    with pytest.raises(ValueError, match="activation must be one of 'silu', .* got 'swish'"):
        recorder.op.gated_activation(recorder.x, "swish")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token_ids"):
        recorder.op.embedding("positions", TABLE)  # type: ignore[arg-type]
