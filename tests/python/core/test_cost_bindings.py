"""What preemption costs, across the border: by request, by mode, and after a broken invariant."""

from __future__ import annotations

import pytest

from fastpaged._core import PreemptionCosts, RequestCost, SamplingParams, Scheduler, SchedulerPolicy


def make_scheduler(mode: str, costs: PreemptionCosts | None = None) -> Scheduler:
    return Scheduler(
        num_blocks=8,
        block_size=2,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_model_len=20,
        num_host_blocks=5,
        policy=SchedulerPolicy(preemption_mode=mode),
        costs=costs,
    )


def add(scheduler: Scheduler, group_id: int, max_tokens: int = 9) -> None:
    sampling = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
    scheduler.add(group_id, [1, 2, 3], sampling, max_tokens, [])


def step(scheduler: Scheduler) -> None:
    plan = scheduler.schedule()
    scheduler.update_tokens(plan, [7] * plan.num_samples)
    scheduler.check_invariants()


def figures(cost: RequestCost) -> tuple[int, int, int, int]:
    return cost.num_preemptions, cost.num_tokens_recomputed, cost.num_blocks_swapped_out, cost.num_blocks_swapped_in


def test_a_requests_own_bill() -> None:
    scheduler = make_scheduler("swap")
    add(scheduler, 1)
    step(scheduler)
    scheduler.preempt(1, "swap")
    step(scheduler)
    assert figures(scheduler.request_cost(1)) == (1, 0, 2, 2)
    scheduler.preempt(1, "recompute")
    step(scheduler)
    assert figures(scheduler.request_cost(1)) == (2, 4, 2, 2)
    assert figures(scheduler.request_cost(2)) == (0, 0, 0, 0)


def test_auto_goes_by_the_costs_which_may_change() -> None:
    scheduler = make_scheduler("auto", PreemptionCosts(seconds_per_token=1.0, seconds_per_block_out=1.0))
    add(scheduler, 1)
    step(scheduler)
    scheduler.preempt(1, "auto")
    step(scheduler)  # three tokens against two blocks
    assert scheduler.stats.num_blocks_swapped_out == 2
    scheduler.set_costs(PreemptionCosts(seconds_per_token=1.0, seconds_per_block_out=3.0))
    scheduler.preempt(1, "auto")
    step(scheduler)
    assert scheduler.stats.num_blocks_swapped_out == 2
    assert scheduler.stats.num_tokens_recomputed == 4
    with pytest.raises(ValueError, match=r"seconds_per_block_in must be seconds >= 0, got -1"):
        scheduler.set_costs(PreemptionCosts(seconds_per_block_in=-1.0))


def test_a_broken_invariant_is_found_and_its_owner_alone_goes() -> None:
    scheduler = make_scheduler("recompute")
    assert scheduler.quarantine().found == []
    add(scheduler, 1)
    add(scheduler, 2)
    step(scheduler)
    scheduler._give_back_too_early(2)
    with pytest.raises(RuntimeError, match="references"):
        scheduler.check_invariants()
    done = scheduler.quarantine()
    assert done.failed == [2]
    assert len(done.found) == 2
    assert "tables hold it" in done.found[0] and done.found[0].startswith("block ")
    assert list(done.events) == []
    assert scheduler.num_quarantined_blocks == 1
    scheduler.check_invariants()
    step(scheduler)
    assert scheduler.num_running == 1
