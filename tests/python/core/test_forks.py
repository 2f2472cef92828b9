"""By hand: what fork(), finish(), preempt() and reset() refuse, what a fork tree costs, lost plans, the pool's end."""

from __future__ import annotations

from typing import Any

import pytest
from core.toy_model import ToyModel, next_token

from fastpaged._core import BatchBuilder, FinishReason, SamplingParams, Scheduler, SchedulerOutput, SequenceEvent

CONFIG: dict[str, Any] = {
    "num_blocks": 12,
    "block_size": 2,
    "num_host_blocks": 12,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 20,
}
STATS = (
    "num_preemptions", "num_groups_swapped_out", "num_groups_swapped_in", "num_tokens_recomputed",
    "num_blocks_swapped_out", "num_blocks_swapped_in", "num_blocks_copied_on_write",
)  # fmt: skip


class Bench:
    """A scheduler with a toy model to run its plans."""

    def __init__(self, **changes: Any) -> None:
        config = {**CONFIG, **changes}
        self.scheduler = Scheduler(**config)
        self.model = ToyModel(config["num_blocks"], config["block_size"], config["num_host_blocks"])
        self.builder = BatchBuilder(self.scheduler)

    def add(self, group_id: int, prompt: list[int], max_tokens: int = 15) -> int:
        """Its first sequence."""
        sampling = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
        self.scheduler.add(group_id, prompt, sampling, max_tokens, [])
        (sequence_id,) = self.scheduler.sequences(group_id)
        return sequence_id

    def step(self) -> tuple[SchedulerOutput, list[SequenceEvent]]:
        plan = self.scheduler.schedule()
        self.model.copy(plan.copies)
        self.model.poison(self.scheduler.free_blocks(), self.scheduler.free_host_blocks())
        tokens = self.model.run(self.builder.build(plan), plan.scheduled_sequences)
        events = self.scheduler.update_tokens(plan, tokens)
        self.scheduler.check_invariants()
        return plan, events

    @property
    def num_held(self) -> int:
        return self.scheduler.num_blocks - self.scheduler.num_free_blocks

    def state(self, group_ids: list[int]) -> object:
        """All that can be seen from outside."""
        scheduler = self.scheduler
        return (
            scheduler.num_waiting,
            scheduler.num_running,
            scheduler.num_swapped,
            scheduler.free_blocks().tolist(),
            scheduler.free_host_blocks().tolist(),
            [scheduler.sequences(group_id) for group_id in group_ids],
            [getattr(scheduler.stats, name) for name in STATS],
        )


def test_a_branch_or_request_that_is_not_here_is_neither_forked_nor_finished_nor_preempted() -> None:
    bench = Bench()
    first, other = bench.add(1, [1, 2, 3]), bench.add(2, [4])
    bench.step()
    before = bench.state([1, 2])
    for group_id, sequence_id in ((3, first), (1, other), (2, first), (1, 99)):
        with pytest.raises(ValueError, match=rf"sequence {sequence_id} of group_id {group_id} is not here"):
            bench.scheduler.fork(group_id, sequence_id)
        assert not bench.scheduler.finish(group_id, sequence_id)
    assert not bench.scheduler.preempt(3, "swap")
    assert not bench.scheduler.abort(3)
    assert bench.state([1, 2]) == before


def test_a_waiting_request_is_not_forked() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add(1, [1])
    waiting = bench.add(2, [2])
    bench.step()
    before = bench.state([1, 2])
    with pytest.raises(ValueError, match="cannot be forked: its request must be running"):
        bench.scheduler.fork(2, waiting)
    assert bench.state([1, 2]) == before


def test_a_request_in_the_middle_of_its_prompt_is_not_forked() -> None:
    bench = Bench(max_num_batched_tokens=2)
    sequence = bench.add(1, [1, 2, 3, 4, 5])
    bench.step()
    before = bench.state([1])
    with pytest.raises(ValueError, match="cannot be forked: its request must be running, with one token left"):
        bench.scheduler.fork(1, sequence)
    assert bench.state([1]) == before
    bench.step()
    child = bench.scheduler.fork(1, sequence)  # before its last prompt token is computed: each branch computes that
    _, events = bench.step()
    assert {e.sequence_id: e.token_id for e in events} == {i: next_token([1, 2, 3, 4, 5], i) for i in (sequence, child)}


def test_a_swapped_request_is_not_forked() -> None:
    bench = Bench(num_blocks=4)
    bench.add(1, [1, 2, 3, 4])
    sequence = bench.add(2, [5, 6, 7])
    while not bench.scheduler.num_swapped:
        bench.scheduler.preempt(2, "swap")
        bench.step()
    before = bench.state([1, 2])
    with pytest.raises(ValueError, match="cannot be forked: its request must be running"):
        bench.scheduler.fork(2, sequence)
    assert bench.state([1, 2]) == before


def test_nothing_is_forked_while_a_plan_is_open() -> None:
    bench = Bench()
    sequence = bench.add(1, [1, 2, 3])
    bench.step()
    plan = bench.scheduler.schedule()
    before = bench.state([1])
    with pytest.raises(ValueError, match=r"fork\(\) must come after update\(\) and before the next schedule\(\)"):
        bench.scheduler.fork(1, sequence)
    assert bench.state([1]) == before
    bench.scheduler.update_tokens(plan, [7])
    bench.scheduler.fork(1, sequence)


@pytest.mark.parametrize(("limit", "value"), [("max_num_seqs", 2), ("max_num_batched_tokens", 2)])
def test_no_branch_beyond_the_limits(limit: str, value: int) -> None:
    bench = Bench(**{limit: value})
    sequence = bench.add(1, [1, 2])
    bench.step()
    bench.scheduler.fork(1, sequence)
    before = bench.state([1])
    with pytest.raises(ValueError, match=f"{limit} (is|{value})"):
        bench.scheduler.fork(1, sequence)
    assert bench.state([1]) == before
    bench.step()


def test_a_fork_takes_no_block_and_each_branch_goes_its_own_way() -> None:
    bench = Bench()
    parent = bench.add(1, [1, 2, 3])
    bench.step()
    held = bench.num_held
    child = bench.scheduler.fork(1, parent)
    assert bench.num_held == held
    context = [1, 2, 3, next_token([1, 2, 3], parent)]
    plan, events = bench.step()
    # The token goes into a half-full block that both hold: one of them copies it, the other keeps it.
    assert [(kind, num_blocks) for kind, _, _, num_blocks in plan.copies] == [("copy_on_write", 1)]
    assert bench.num_held == held + 1
    assert {e.sequence_id: e.token_id for e in events} == {i: next_token(context, i) for i in (parent, child)}
    plan, _ = bench.step()
    assert plan.copies == []


def test_a_request_ends_with_its_last_branch() -> None:
    bench = Bench()
    parent = bench.add(1, [1, 2, 3])
    bench.step()
    child = bench.scheduler.fork(1, parent)
    bench.step()
    assert bench.scheduler.finish(1, parent)
    assert not bench.scheduler.finish(1, parent)
    assert bench.scheduler.sequences(1) == [child]
    assert bench.num_held == 2
    assert bench.scheduler.finish(1, child)
    assert not bench.scheduler.has_unfinished()
    assert bench.num_held == 0


def test_what_branches_share_is_swapped_once_and_shared_again() -> None:
    bench = Bench(num_blocks=4)
    sequence = bench.add(1, [1, 2, 3, 4])
    bench.step()
    for _ in range(3):
        bench.scheduler.fork(1, sequence)
    bench.scheduler.preempt(1, "swap")
    plan, events = bench.step()
    copied = {kind: sum(count for k, _, _, count in plan.copies if k == kind) for kind in ("swap_out", "swap_in")}
    assert copied == {"swap_out": 2, "swap_in": 2}
    assert plan.preempted == plan.swapped_out == plan.swapped_in == [1]
    # Two shared blocks, and one for each branch's next token, of which the pool has room for two.
    assert [e.finish_reason.name for e in events if e.finish_reason is not None] == ["LENGTH"] * 2
    assert bench.num_held == 4


def test_recomputing_a_fork_tree_needs_no_more_blocks_than_it_held() -> None:
    bench = Bench(num_blocks=4)
    sequence = bench.add(1, [1, 2, 3, 4])
    bench.step()
    other = bench.scheduler.fork(1, sequence)
    bench.step()
    assert bench.num_held == 4  # the pool: the prompt's two blocks, and each branch's own
    bench.scheduler.preempt(1, "recompute")
    computed = 0
    for _ in range(3):
        plan, events = bench.step()
        computed += plan.num_tokens
        if events:
            break
    assert [event.sequence_id for event in events] == [sequence, other]
    assert [event.finish_reason for event in events] == [None, None]
    assert computed == 4 + 2 * 2  # the prompt once, and each branch's own tokens
    assert bench.scheduler.stats.num_tokens_recomputed == 4 + 2


def test_when_a_branch_leaves_what_its_children_shared_stays_shared() -> None:
    """The tree is being recomputed when its stem ends: two later branches have more in common than the first one."""
    bench = Bench(num_blocks=8, block_size=1)
    stem = bench.add(1, [1])
    bench.step()
    first = bench.scheduler.fork(1, stem)
    bench.step()
    bench.step()
    later = [bench.scheduler.fork(1, stem), bench.scheduler.fork(1, stem)]
    bench.scheduler.preempt(1, "recompute")
    bench.scheduler.schedule()
    assert bench.scheduler.finish(1, stem)
    events: list[SequenceEvent] = []
    while not events:
        _, events = bench.step()
    # One block of all three, two of the later ones, two of the first's own, and one more for each: all there is.
    assert [(event.sequence_id, event.finish_reason) for event in events] == [(i, None) for i in (first, *later)]
    assert bench.num_held == 8


@pytest.mark.parametrize("num_branches", [1, 3])
def test_when_a_plan_is_lost_nobody_believes_that_its_copies_were_run(num_branches: int) -> None:
    bench = Bench()
    sequence = bench.add(1, [1, 2, 3])
    bench.step()
    context = [1, 2, 3, next_token([1, 2, 3], sequence)]
    for _ in range(num_branches - 1):
        bench.scheduler.fork(1, sequence)
    bench.scheduler.preempt(1, "swap")
    assert {kind for kind, _, _, _ in bench.scheduler.schedule().copies} >= {"swap_out", "swap_in"}
    plan, events = bench.step()
    assert plan.copies == []
    while not events:
        plan, events = bench.step()
    assert {e.sequence_id: e.token_id for e in events} == {
        i: next_token(context, i) for i in bench.scheduler.sequences(1)
    }
    assert len(events) == num_branches


def test_a_request_that_needs_the_whole_pool_gets_it_and_ends_when_it_needs_more() -> None:
    bench = Bench(num_blocks=3, num_host_blocks=0)
    oldest = bench.add(1, [1, 2])
    bench.add(2, [3])
    lengths = {1: 2, 2: 1}
    while 1 in lengths:
        _, events = bench.step()
        for event in events:
            if event.token_id is not None:
                lengths[event.group_id] += 1
            elif event.group_id == 1:
                assert (event.sequence_id, event.finish_reason, event.group_finished) == (
                    oldest,
                    FinishReason.LENGTH,
                    True,
                )
                assert lengths.pop(1) == 3 * 2 + 1  # six slots, and a last token that needs none
    assert bench.scheduler.num_preemptions(2) == 1


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_reset_ends_whatever_is_there_in_any_state(mode: str) -> None:
    bench = Bench(num_blocks=4)
    for group_id in (1, 2, 3):
        bench.add(group_id, [group_id] * 3)
    bench.step()
    bench.scheduler.preempt(1, mode)
    bench.scheduler.schedule()
    bench.scheduler.reset()
    bench.scheduler.check_invariants()
    assert not bench.scheduler.has_unfinished()
    assert (bench.scheduler.num_waiting, bench.scheduler.num_running, bench.scheduler.num_swapped) == (0, 0, 0)
    assert (bench.scheduler.num_free_blocks, bench.scheduler.num_free_host_blocks) == (4, 12)
    for group_id in (1, 2, 3):
        bench.add(group_id, [group_id])
    bench.step()
