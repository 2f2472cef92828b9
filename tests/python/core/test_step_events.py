"""StepEvents: the same events one by one and as plain numbers."""

from __future__ import annotations

import struct

import numpy as np

from fastpaged import _core


def test_the_packed_numbers_are_those_of_the_events() -> None:
    scheduler = _core.Scheduler(
        num_blocks=64, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=32, max_num_rows=32
    )
    builder = _core.BatchBuilder(scheduler)
    sampler = _core.Sampler(_core.CpuDevice("scalar", 1))
    greedy = _core.SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None, num_prompt_logprobs=1
    )
    plain = _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
    scheduler.add(2**40, [1, 2, 3], plain, 1, [])
    scheduler.add(11, [1, 2, 3, 4], greedy, 5, [])
    scheduler.add(12, [1, 2], plain, 5, [0])
    plan = scheduler.schedule()
    assert plan.let_in == [2**40, 11, 12]
    logits = np.zeros((plan.num_rows, 16), np.float32)
    logits[0, 5] = logits[-2, 6] = 1.0
    events = scheduler.update(plan, sampler.sample(logits, builder.build(plan)))
    rows = list(struct.iter_unpack("=2Q7qQqd", events.packed))
    assert len(rows) == len(events) == 3
    reasons = list(_core.FinishReason.__members__)
    kinds = list(_core.EventKind.__members__)
    for row, event in zip(rows, events, strict=True):
        assert row[:2] == (event.group_id, event.sequence_id)
        assert row[2] == (-1 if event.token_id is None else event.token_id)
        assert event.sample_row is None or row[3] == event.sample_row
        assert event.score_rows is None or row[4:6] == event.score_rows
        assert row[6] == (-1 if event.finish_reason is None else reasons.index(event.finish_reason.name))
        assert row[7] == event.group_finished
        assert row[8] == kinds.index(event.kind.name)
        assert row[9:] == (event.parent_id, event.branch, event.score)
    assert [row[2] for row in rows] == [5, 6, 0]
    assert [row[6] for row in rows] == [reasons.index("LENGTH"), -1, reasons.index("STOP")]
    assert scheduler.schedule().let_in == []
