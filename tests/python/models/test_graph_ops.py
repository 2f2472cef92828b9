"""What GraphOps records, and what it refuses to record."""

from __future__ import annotations

import numpy as np
import pytest

from fastpaged import _core
from fastpaged.ops.graph_ops import BatchInputs, GraphOps, Sum, Value

BATCH = BatchInputs()
TABLE = np.zeros((11, 16), np.uint16)
WEIGHT = np.ones(16, np.float32)


class Recorder:
    """A graph being recorded, and a square weight."""

    def __init__(self) -> None:
        device = _core.CpuDevice("scalar", 1)
        self.graph = _core.ModelGraph(device)
        self.op = GraphOps(self.graph)
        self.square = _core.PackedLinear(device, [np.zeros((16, 16), np.uint16)])
        self.x = self.op.embedding(BATCH.token_ids, TABLE)

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


def test_a_pending_sum_is_no_array(recorder: Recorder) -> None:
    total = recorder.op.all_reduce(recorder.branch(recorder.x), add=recorder.x)
    with pytest.raises(ValueError, match="pending sum"):
        recorder.op.all_reduce(recorder.branch(recorder.x), add=total)
    with pytest.raises(ValueError, match="Sum"):
        recorder.op.all_reduce(total, add=recorder.x)  # type: ignore[arg-type]


def test_a_shape_that_does_not_fit_is_named_when_it_is_recorded(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="rms_norm: weight .*= 16, got 15"):
        recorder.op.rms_norm(recorder.x, WEIGHT[:15], 0.0)
    with pytest.raises(ValueError, match="linear: x must be bfloat16"):
        recorder.op.linear(recorder.x, recorder.square)
    with pytest.raises(ValueError, match="activation must be 'silu', got 'gelu'"):
        recorder.op.gated_activation(recorder.x, "gelu")
    with pytest.raises(ValueError, match="token_ids"):
        recorder.op.embedding("positions", TABLE)  # type: ignore[arg-type]
