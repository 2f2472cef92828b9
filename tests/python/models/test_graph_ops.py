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

    def product(self, x: Value | Sum) -> Value:
        """What a linear computes, and has not computed yet."""
        return self.op.linear(self.op.rms_norm(x, WEIGHT, 0.0), self.square)

    def branch(self, x: Value | Sum) -> Value:
        """What another op computes, in float32."""
        return self.op.rms_norm(x, WEIGHT, 0.0, dtype="float32")

    def lines(self) -> list[str]:
        return [line.strip() for line in self.graph.describe().splitlines()[1:]]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_a_linear_adds_what_it_computes_to_the_buffer_it_is_added_to(recorder: Recorder) -> None:
    first = recorder.op.all_reduce(recorder.product(recorder.x), add=recorder.x)
    second = recorder.op.add(recorder.product(first), first)  # on either side
    recorder.op.rms_norm(second, WEIGHT, 0.0)
    assert recorder.lines()[2:] == [
        "2: linear weight=[16, 16] added  #1 -> #0 [T, 16] float32",
        "3: rms_norm eps=0  #0 -> #3 [T, 16] bfloat16",
        "4: linear weight=[16, 16] added  #3 -> #0 [T, 16] float32",
        "5: rms_norm eps=0  #0 -> #5 [T, 16] bfloat16",
    ]


def test_what_a_linear_has_added_elsewhere_cannot_be_read(recorder: Recorder) -> None:
    y = recorder.product(recorder.x)
    recorder.op.all_reduce(y, add=recorder.x)
    for gone in (y, recorder.x):
        with pytest.raises(ValueError, match=f"buffer {gone.buffer} was updated in place"):
            recorder.op.rms_norm(gone, WEIGHT, 0.0)


def test_a_linear_that_is_not_the_last_op_or_has_an_activation_leaves_its_sum_to_a_norm(recorder: Recorder) -> None:
    y = recorder.product(recorder.x)
    other = recorder.branch(recorder.x)
    recorder.op.rms_norm(recorder.op.add(recorder.x, y), WEIGHT, 0.0)
    assert recorder.lines()[4].startswith("4: rms_norm eps=0  #0 += #2 -> #4")
    wide = Recorder("float32")
    active = wide.op.linear(wide.op.rms_norm(wide.x, WEIGHT, 0.0), wide.square, None, "relu")
    wide.op.rms_norm(wide.op.add(wide.x, active), WEIGHT, 0.0)
    assert wide.lines()[3].startswith("3: rms_norm eps=0  #0 += #2 -> #3")
    assert other.buffer == 3


def test_a_linear_in_float32_that_reads_the_stream_itself_is_added_by_an_op() -> None:
    recorder = Recorder("float32")
    recorder.op.rms_norm(recorder.op.add(recorder.x, recorder.op.linear(recorder.x, recorder.square)), WEIGHT, 0.0)
    assert [line.split("  ")[0] for line in recorder.lines()[1:]] == [
        "1: linear weight=[16, 16]",
        "2: add",
        "3: rms_norm eps=0",
    ]


def test_a_sum_is_added_up_by_the_norm_that_reads_it(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    assert len(recorder.lines()) == 2  # embedding, norm: the sum itself costs no op
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert recorder.lines()[2].startswith("2: rms_norm eps=0  #0 += #1 -> #2")


def test_a_sum_goes_on_in_the_buffer_of_its_first_part(recorder: Recorder) -> None:
    first = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    second = recorder.op.all_reduce(recorder.branch(first), add=first)
    recorder.op.rms_norm(second, WEIGHT, 0.0)
    assert "#0 += #2" in recorder.lines()[3]


def test_a_sum_is_added_up_only_once(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert "+=" in recorder.lines()[2]
    assert recorder.lines()[3].startswith("3: rms_norm eps=0  #0 -> ")


def test_rows_of_a_sum_are_rows_of_both_parts(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(recorder.op.rows(total, BATCH.sample_rows), WEIGHT, 0.0)
    lines = recorder.lines()
    assert lines[2].startswith("2: gather_rows  #0 -> #2 [R, 16]")
    assert lines[3].startswith("3: gather_rows  #1 -> #3 [R, 16]")
    assert lines[4].startswith("4: rms_norm eps=0  #2 += #3 -> #4 [R, 16]")


def test_rows_of_a_sum_already_added_up_are_rows_of_one_buffer(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert isinstance(recorder.op.rows(total, BATCH.sample_rows), Value)
    assert recorder.lines()[3].startswith("3: gather_rows  #0 -> ")


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
    """The second sum goes on in the same buffer."""
    first, second = recorder.branch(recorder.x), recorder.branch(recorder.x)
    total = recorder.op.add(recorder.op.add(recorder.x, first), second)
    lines = recorder.lines()
    assert lines[3].startswith("3: add  #0 += #1 -> #0 [T, 16] float32")
    assert len(lines) == 4
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert recorder.lines()[4].startswith("4: rms_norm eps=0  #0 += #2 -> #3")


def test_attention_and_an_mlp_beside_it_meet_in_one_buffer_and_a_norm_adds_them(recorder: Recorder) -> None:
    attention, mlp = recorder.product(recorder.x), recorder.product(recorder.x)
    total = recorder.op.all_reduce(recorder.op.add(mlp, attention), add=recorder.x)
    recorder.op.rms_norm(total, WEIGHT, 0.0)
    assert recorder.lines()[4].startswith("4: linear weight=[16, 16] added  #3 -> #2 [T, 16] float32")
    assert recorder.lines()[5].startswith("5: rms_norm eps=0  #0 += #2 -> #5")


def test_a_pending_sum_may_stand_on_either_side(recorder: Recorder) -> None:
    pending = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    other = recorder.op.rms_norm(pending, WEIGHT, 0.0, dtype="float32")
    recorder.op.layer_norm(
        recorder.op.add(other, recorder.op.add(pending, recorder.branch(pending))), WEIGHT, None, 0.0
    )
    lines = recorder.lines()
    assert lines[2].startswith("2: rms_norm eps=0  #0 += #1 -> #2 [T, 16] float32")
    assert lines[4].startswith("4: add  #0 += #3 -> #0")
    assert lines[5].startswith("5: layer_norm eps=0  #2 += #0 -> #4 [T, 16] bfloat16")


def test_a_sum_is_an_array_to_whatever_reads_it() -> None:
    recorder = Recorder("float32")
    total = recorder.op.add(recorder.x, recorder.branch(recorder.x))
    recorder.op.linear(total, recorder.square)
    recorder.op.linear(total, recorder.square, None, "relu")
    assert [line.split("  ")[0] for line in recorder.lines()[2:]] == [
        "2: add",
        "3: linear weight=[16, 16]",
        "4: linear weight=[16, 16] relu",
    ]


def test_on_one_worker_a_reduction_alone_is_no_op(recorder: Recorder) -> None:
    y = recorder.product(recorder.x)
    assert recorder.op.all_reduce(y) == y
    assert recorder.op.all_reduce(recorder.op.all_reduce(y), add=recorder.x) == Value(0, "tokens", 16, "float32", 1)


def test_a_soft_cap_takes_the_place_of_what_it_caps(recorder: Recorder) -> None:
    y = recorder.product(recorder.x)
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
    with pytest.raises(ValueError, match="buffer 1 was updated in place"):
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
    op.linear(h, recorder.square, vector, "relu")
    gated = _core.PackedLinear(recorder.device, [np.zeros((64, 16), np.uint16)], gated=True)
    g = op.gated_linear(h, gated, np.ones(64, np.float32), "gelu_tanh")
    assert (g.cols, g.dtype) == (32, "bfloat16")
    assert [line.split(" -> ")[0].split("  ")[0] for line in recorder.lines()[1:]] == [
        "1: embedding vocab=11 scale=4 positions=7",
        "2: layer_norm eps=1e-05 bias",
        "3: linear weight=[64, 16] bias",
        "4: rotary_cache_write layer=0 rotary=2 norm_eps=1e-06",
        "5: paged_attention layer=0 scale=0.5 window=8 soft_cap=50 alibi",
        "6: rotary_cache_write layer=1",
        "7: paged_attention layer=1 scale=0.5",
        "8: linear weight=[16, 16] bias relu",
        "9: linear weight=[64, 16] bias gated gelu_tanh",
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
    h = recorder.op.rms_norm(recorder.x, WEIGHT, 0.0)
    with pytest.raises(ValueError, match="linear: x must be bfloat16"):
        recorder.op.linear(recorder.x, recorder.square)
    with pytest.raises(ValueError, match="activation must be one of 'silu', .* got 'swish'"):
        recorder.op.linear(h, recorder.square, None, "swish")  # type: ignore[arg-type]
    gated = _core.PackedLinear(recorder.device, [np.zeros((32, 16), np.uint16)], gated=True)
    with pytest.raises(ValueError, match="linear: a gated weight must have an activation"):
        recorder.op.linear(h, gated)
    with pytest.raises(ValueError, match="gated_linear: weight must be packed with its gates beside their ups"):
        recorder.op.gated_linear(h, recorder.square, None, "silu")
    with pytest.raises(ValueError, match="token_ids"):
        recorder.op.embedding("positions", TABLE)  # type: ignore[arg-type]
