"""Policies, forks, preemption and block copies across the border."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fastpaged._core import (
    BatchBuilder,
    FinishReason,
    SamplingParams,
    Scheduler,
    SchedulerOutput,
    SchedulerPolicy,
    copy_blocks,
)

Blocks = npt.NDArray[np.uint16]

POLICY_DEFAULTS: dict[str, Any] = {
    "preemption_mode": "by_branches",
    "chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "watermark": 0.01,
    "counts_running_needs": True,
    "block_per_branch": False,
    "swapped_before_waiting": False,
}


def fields_of(policy: SchedulerPolicy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in POLICY_DEFAULTS}


def make_scheduler(**changes: Any) -> Scheduler:
    sizes = {"num_blocks": 8, "block_size": 2, "max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 20}
    return Scheduler(**(sizes | {"num_host_blocks": 5} | changes))


def add(scheduler: Scheduler, group_id: int, prompt: list[int], max_tokens: int = 9) -> None:
    sampling = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
    scheduler.add(group_id, prompt, sampling, max_tokens, [])


def step(scheduler: Scheduler) -> SchedulerOutput:
    plan = scheduler.schedule()
    scheduler.update_tokens(plan, [7] * plan.num_samples)
    scheduler.check_invariants()
    return plan


# ---- policies


def test_the_default_policy_is_the_engines_and_each_field_can_be_given() -> None:
    assert fields_of(SchedulerPolicy()) == POLICY_DEFAULTS
    others: dict[str, Any] = {
        "preemption_mode": "swap",
        "chunked_prefill": True,
        "long_prefill_token_threshold": 3,
        "watermark": 0.5,
        "counts_running_needs": False,
        "block_per_branch": True,
        "swapped_before_waiting": True,
    }
    assert fields_of(SchedulerPolicy(**others)) == others
    assert SchedulerPolicy(preemption_mode="recompute").preemption_mode == "recompute"
    assert not SchedulerPolicy(chunked_prefill=False).chunked_prefill


def test_the_papers_policy_is_there_by_name() -> None:
    assert fields_of(SchedulerPolicy.paper_2023()) == {
        "preemption_mode": "by_branches",
        "chunked_prefill": False,
        "long_prefill_token_threshold": 0,
        "watermark": 0.01,
        "counts_running_needs": False,
        "block_per_branch": True,
        "swapped_before_waiting": True,
    }


@pytest.mark.parametrize("name", sorted(POLICY_DEFAULTS))
def test_a_policy_cannot_be_changed(name: str) -> None:
    policy = SchedulerPolicy()
    with pytest.raises(AttributeError):
        setattr(policy, name, POLICY_DEFAULTS[name])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"preemption_mode": "sometimes"},
            "preemption_mode must be 'recompute', 'swap', 'by_branches' or 'auto', got 'sometimes'",
        ),
        (
            {"preemption_mode": "swap\0"},
            "preemption_mode must be 'recompute', 'swap', 'by_branches' or 'auto', got 'swap\\x00'",
        ),
        ({"watermark": 1.0}, "watermark must be in [0, 1), got 1.000000"),
        ({"watermark": -0.5}, "watermark must be in [0, 1), got -0.500000"),
        ({"watermark": float("nan")}, "watermark must be in [0, 1), got nan"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be >= 0, got -1"),
        (
            {"long_prefill_token_threshold": 2**31},
            "long_prefill_token_threshold must be in [-2147483648, 2147483647], got 2147483648",
        ),
        (
            {"long_prefill_token_threshold": 1, "chunked_prefill": False},
            "long_prefill_token_threshold must be 0 without chunked_prefill, got 1",
        ),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SchedulerPolicy(**fields)


def test_a_mode_that_is_no_string_is_a_type_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="preemption_mode must be a string, got int"):
        SchedulerPolicy(preemption_mode=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chunked_prefill": None}, "chunked_prefill must be True or False, got None"),
        ({"counts_running_needs": 2}, "counts_running_needs must be True or False, got 2"),
        ({"block_per_branch": "yes"}, "block_per_branch must be True or False, got 'yes'"),
        ({"swapped_before_waiting": 0}, "swapped_before_waiting must be True or False, got 0"),
        ({"watermark": "1 %"}, "watermark must be a number, got '1 %'"),
        ({"watermark": None}, "watermark must be a number, got None"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        SchedulerPolicy(**fields)


def test_a_policy_shows_its_fields() -> None:
    assert repr(SchedulerPolicy.paper_2023()) == (
        "SchedulerPolicy(preemption_mode='by_branches', chunked_prefill=False, long_prefill_token_threshold=0, "
        "watermark=0.01, counts_running_needs=False, block_per_branch=True, swapped_before_waiting=True, "
        "resume_grace_steps=0, by_priority=False, ageing_steps=0, prefill_share=0)"
    )


def test_an_interrupt_while_an_argument_is_read_stays_an_interrupt() -> None:
    class Interrupting:
        def __index__(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SchedulerPolicy(long_prefill_token_threshold=Interrupting())  # type: ignore[arg-type]


def test_a_scheduler_follows_its_policy() -> None:
    scheduler = make_scheduler(policy=SchedulerPolicy(long_prefill_token_threshold=2))
    add(scheduler, 1, [4, 5, 6])
    assert step(scheduler).scheduled == [(1, 0, 2)]
    whole = SchedulerPolicy(chunked_prefill=False)
    with pytest.raises(
        ValueError, match="max_num_batched_tokens must be >= max_model_len = 20 without chunked_prefill"
    ):
        make_scheduler(policy=whole)
    scheduler = make_scheduler(policy=whole, max_num_batched_tokens=20)
    del whole
    gc.collect()  # the scheduler has its own
    add(scheduler, 1, [4] * 12)
    add(scheduler, 2, [4] * 12)
    assert step(scheduler).scheduled == [(1, 0, 12)]


# ---- forks and branches


def test_a_fork_shares_its_parents_blocks_until_one_of_them_writes() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6])
    step(scheduler)
    (parent,) = scheduler.sequences(1)
    child = scheduler.fork(1, parent)
    assert scheduler.sequences(1) == [parent, child]
    assert scheduler.num_free_blocks == 6
    plan = scheduler.schedule()
    assert plan.scheduled == [(1, 3, 1), (1, 3, 1)]
    assert plan.scheduled_sequences == [parent, child]
    assert plan.copies == [("copy_on_write", 1, 2, 1)]  # the second block, half full; the first stays shared
    tables = BatchBuilder(scheduler).build(plan).block_tables.tolist()
    assert sorted(tables) == [[0, 1], [0, 2]]
    events = scheduler.update_tokens(plan, [7, 8])
    assert [(event.sequence_id, event.token_id, event.group_finished) for event in events] == [
        (parent, 7, False),
        (child, 8, False),
    ]
    assert scheduler.stats.num_blocks_copied_on_write == 1
    scheduler.check_invariants()


def test_a_request_ends_with_the_last_of_its_sequences() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6])
    step(scheduler)
    (parent,) = scheduler.sequences(1)
    child = scheduler.fork(1, parent)
    assert scheduler.finish(1, parent)
    assert not scheduler.finish(1, parent)
    assert scheduler.sequences(1) == [child]
    events = scheduler.update_tokens(scheduler.schedule(), [None])
    assert [(event.finish_reason, event.group_finished) for event in events] == [(FinishReason.ERROR, True)]
    assert scheduler.num_free_blocks == 8
    with pytest.raises(ValueError, match="group_id 1 is not here"):
        scheduler.sequences(1)
    assert not scheduler.finish(1, child)


def test_a_branch_that_ends_leaves_its_request_unfinished() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6])
    step(scheduler)
    scheduler.fork(1, scheduler.sequences(1)[0])
    events = scheduler.update_tokens(scheduler.schedule(), [None, 8])
    assert [(event.finish_reason, event.group_finished) for event in events] == [
        (FinishReason.ERROR, False),
        (None, False),
    ]


def test_a_fork_that_cannot_be_is_refused_and_changes_nothing() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, 1, [4, 5, 6])
    with pytest.raises(ValueError, match="sequence 0 of group_id 1 cannot be forked: its request must be running"):
        scheduler.fork(1, 0)
    plan = scheduler.schedule()
    with pytest.raises(ValueError, match=r"fork\(\) must come after update\(\)"):
        scheduler.fork(1, 0)
    scheduler.update_tokens(plan, [7])
    for group_id, sequence_id in ((1, 5), (2, 0)):
        with pytest.raises(ValueError, match=f"sequence {sequence_id} of group_id {group_id} is not here"):
            scheduler.fork(group_id, sequence_id)
    with pytest.raises(ValueError, match="max_num_seqs is 1"):
        scheduler.fork(1, 0)
    with pytest.raises(ValueError, match="sequence_id must be in"):
        scheduler.fork(1, -1)
    assert scheduler.sequences(1) == [0]
    scheduler.check_invariants()


# ---- preemption


def test_a_swap_goes_to_the_host_and_comes_back_in_merged_copies() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6, 7, 8])
    step(scheduler)
    assert scheduler.preempt(1, "swap")
    plan = scheduler.schedule()  # alone, it is back at once
    assert (plan.preempted, plan.swapped_out, plan.swapped_in) == ([1], [1], [1])
    assert plan.copies == [("swap_out", 0, 0, 3), ("swap_in", 0, 0, 3)]
    assert plan.scheduled == [(1, 5, 1)]
    scheduler.update_tokens(plan, [7])
    stats = scheduler.stats
    assert (stats.num_preemptions, stats.num_groups_swapped_out, stats.num_groups_swapped_in) == (1, 1, 1)
    assert (stats.num_blocks_swapped_out, stats.num_blocks_swapped_in, stats.num_tokens_recomputed) == (3, 3, 0)
    assert scheduler.num_preemptions(1) == 1
    assert (scheduler.num_free_host_blocks, scheduler.num_host_blocks) == (5, 5)


def test_a_swapped_request_is_counted_and_its_host_blocks_are_given_back_by_an_abort() -> None:
    scheduler = make_scheduler(policy=SchedulerPolicy(preemption_mode="swap"), num_blocks=4)
    add(scheduler, 1, [4, 5, 6])
    add(scheduler, 2, [4, 5, 6])
    for _ in range(2):
        step(scheduler)
    plan = step(scheduler)  # the first needs a third block
    assert plan.swapped_out == [2]
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_swapped) == (1, 0, 1)
    assert (scheduler.num_free_host_blocks, scheduler.num_free_blocks) == (3, 1)
    assert scheduler.free_host_blocks().tolist() == [2, 3, 4]
    assert scheduler.free_host_blocks().dtype == np.int32
    assert scheduler.abort(2)
    assert (scheduler.num_swapped, scheduler.num_free_host_blocks) == (0, 5)
    scheduler.check_invariants()


def test_recomputing_copies_nothing_and_counts_tokens() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6, 7, 8])
    step(scheduler)
    before = scheduler.stats
    assert scheduler.preempt(1, "recompute")
    plan = step(scheduler)
    assert (plan.preempted, plan.swapped_out, plan.copies) == ([1], [], [])
    assert plan.scheduled == [(1, 0, 6)]
    assert scheduler.stats.num_tokens_recomputed == 5
    assert before.num_preemptions == 0  # a copy, not a view


def test_preempting_nobody_or_by_no_mode_is_said() -> None:
    scheduler = make_scheduler()
    assert not scheduler.preempt(1, "swap")
    with pytest.raises(ValueError, match="mode must be 'recompute', 'swap', 'by_branches' or 'auto', got 'hard'"):
        scheduler.preempt(1, "hard")
    with pytest.raises(TypeError, match="mode must be a string, got NoneType"):
        scheduler.preempt(1, None)  # type: ignore[arg-type]


def test_a_reset_ends_all_and_frees_all() -> None:
    scheduler = make_scheduler()
    for group_id in range(3):
        add(scheduler, group_id, [4, 5, 6])
    step(scheduler)
    scheduler.fork(0, scheduler.sequences(0)[0])
    scheduler.preempt(1, "swap")
    scheduler.schedule()
    scheduler.reset()
    assert not scheduler.has_unfinished()
    assert (scheduler.num_free_blocks, scheduler.num_free_host_blocks) == (8, 5)
    scheduler.check_invariants()
    assert scheduler.schedule().copies == []
    add(scheduler, 0, [4])
    assert step(scheduler).scheduled == [(0, 0, 1)]


# ---- copies


def two_tiers(device_blocks: int = 8, host_blocks: int = 5) -> tuple[Blocks, Blocks]:
    device = np.arange(device_blocks * 6, dtype=np.uint16).reshape(device_blocks, 2, 3)
    return device, np.full((host_blocks, 2, 3), 9999, np.uint16)


def swapping_plan() -> SchedulerOutput:
    """swap_out 0..2 -> 0..2, swap_in 0..2 -> 0..2."""
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6, 7, 8])
    step(scheduler)
    scheduler.preempt(1, "swap")
    return scheduler.schedule()


def forking_plan() -> SchedulerOutput:
    """copy_on_write 1 -> 2."""
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6])
    step(scheduler)
    scheduler.fork(1, scheduler.sequences(1)[0])
    return scheduler.schedule()


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_copies_move_whole_blocks_between_the_tiers(dtype: Any) -> None:
    device, host = (array.astype(dtype) for array in two_tiers())
    before, block_bytes = device.copy(), device[0].nbytes
    assert copy_blocks(swapping_plan(), device, host) == 6 * block_bytes
    np.testing.assert_array_equal(host[:3], before[:3])
    assert (host[3:] == 9999).all()
    np.testing.assert_array_equal(device, before)
    assert copy_blocks(forking_plan(), device, host) == block_bytes
    before[2] = before[1]
    np.testing.assert_array_equal(device, before)


def test_a_plan_without_copies_looks_at_no_memory() -> None:
    plan = make_scheduler().schedule()
    assert copy_blocks(plan, None, None) == 0  # type: ignore[arg-type]


def test_no_host_memory_is_enough_for_copies_within_the_device() -> None:
    device, host = two_tiers(host_blocks=0)
    assert copy_blocks(forking_plan(), device, host) == 12


def read_only(array: Blocks) -> Blocks:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda device, host: (device[:, ::-1], host), "device must be C-contiguous, with the block as its first axis"),
        (lambda device, host: (device, host[::-1]), "host must be C-contiguous, with the block as its first axis"),
        (lambda device, host: (device, host.transpose(0, 2, 1)), "host must be C-contiguous"),
        (lambda device, host: (np.array(3, np.uint16), host), "device must be C-contiguous"),
        (lambda device, host: (device, host[:, :1].copy()), "host must have blocks of 12 bytes, as device has, got 6"),
        (lambda device, host: (device[:, :0], host), "device must have blocks of at least one byte, got 0"),
        (lambda device, host: (device.astype(np.int32), host), "device must be an array of uint16"),
        (lambda device, host: (device, host.astype(np.int32)), "host must be an array of uint16"),
        (lambda device, host: (device, host.astype(np.float32)), "host must be an array of uint16"),
        (lambda device, host: (device, read_only(host)), "host must be a writable array"),
        (lambda device, host: (read_only(device), host), "device must be a writable array"),
        (lambda device, host: (None, host), "device must be a writable array"),
        (lambda device, host: (device, host[:2].copy()), "copies: destination must be blocks in [0, 2), got 3 from 0"),
        (lambda device, host: (device[:2].copy(), host), "copies: source must be blocks in [0, 2), got 3 from 0"),
    ],
)
def test_memory_of_a_wrong_kind_is_refused_by_name_and_nothing_is_copied(change: Any, message: str) -> None:
    device, host = change(*two_tiers())
    kept = [None if array is None else array.copy() for array in (device, host)]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        copy_blocks(swapping_plan(), device, host)
    for array, before in zip((device, host), kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_a_plan_outlives_its_scheduler() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6])
    step(scheduler)
    child = scheduler.fork(1, scheduler.sequences(1)[0])
    plan, stats = scheduler.schedule(), scheduler.stats
    del scheduler
    gc.collect()
    others = [make_scheduler() for _ in range(50)]  # would take the memory, were it free
    assert plan.scheduled_sequences[1] == child
    assert plan.copies == [("copy_on_write", 1, 2, 1)]
    assert stats.num_blocks_copied_on_write == 1
    assert len(others) == 50


def test_a_batch_of_forks_keeps_alive_all_that_it_points_into() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, [4, 5, 6])
    step(scheduler)
    scheduler.fork(1, scheduler.sequences(1)[0])
    tables = BatchBuilder(scheduler).build(scheduler.schedule()).block_tables
    del scheduler
    gc.collect()
    others = [BatchBuilder(make_scheduler()) for _ in range(50)]
    assert sorted(tables.tolist()) == [[0, 1], [0, 2]]
    assert len(others) == 50
