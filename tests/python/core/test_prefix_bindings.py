"""The scheduler's prefix cache and pins across the border."""

from __future__ import annotations

from typing import Any

import pytest

from fastpaged._core import PinnedPrefix, SamplingParams, Scheduler, SchedulerOutput

TEXT = list(range(100, 109))  # two blocks of four tokens, and one more


def make_scheduler(**changes: Any) -> Scheduler:
    sizes = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 60}
    return Scheduler(**(sizes | {"prefix_caching": True, "max_pinned_blocks": 5} | changes))


def add(scheduler: Scheduler, group_id: int, prompt: list[int], max_tokens: int = 1, **more: Any) -> None:
    sampling = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
    scheduler.add(group_id, prompt, sampling, max_tokens, [], **more)


def step(scheduler: Scheduler) -> SchedulerOutput:
    plan = scheduler.schedule()
    scheduler.update_tokens(plan, [7] * plan.num_results)
    scheduler.check_invariants()
    return plan


def fields_of(pin: PinnedPrefix) -> tuple[int, int, int, int]:
    return pin.id, pin.num_tokens, pin.num_blocks, pin.num_held_blocks


def test_a_plan_says_what_each_new_request_found() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, TEXT)
    assert step(scheduler).cached == [(1, 0)]
    add(scheduler, 2, [*TEXT[:6], 1, 2])
    add(scheduler, 3, [1, 2, 3])
    plan = step(scheduler)
    assert plan.cached == [(2, 6), (3, 0)]
    assert plan.scheduled == [(2, 6, 2), (3, 0, 3)]
    assert [(kind, count) for kind, _, _, count in plan.copies] == [("copy_on_write", 1)]
    stats = scheduler.stats
    assert (stats.num_prefix_tokens_looked_up, stats.num_prefix_tokens_found) == (9 + 8 + 3, 6)
    assert (stats.num_partial_prefix_blocks, stats.num_blocks_copied_on_write) == (1, 1)
    assert (stats.num_cached_blocks_evicted, stats.num_pins_released) == (0, 0)


def test_caching_is_off_unless_asked_for() -> None:
    scheduler = Scheduler(
        num_blocks=20, block_size=4, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=60, max_num_rows=0
    )
    for group_id in (1, 2):
        add(scheduler, group_id, TEXT)
        assert step(scheduler).cached == [(group_id, 0)]
    assert len(scheduler.cached_free_blocks()) == 0


def test_a_root_and_the_wish_to_compute_all_keep_requests_apart() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, TEXT, cache_root="müller")
    step(scheduler)
    for group_id, found, more in (
        (2, 0, {}),
        (3, 8, {"cache_root": "müller"}),
        (4, 0, {"cache_root": "müller", "skip_prefix_cache": True}),
    ):
        add(scheduler, group_id, TEXT, **more)
        assert step(scheduler).cached == [(group_id, found)]


def test_free_blocks_that_hold_something_are_listed_apart() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, TEXT)
    step(scheduler)
    free, cached = scheduler.free_blocks(), scheduler.cached_free_blocks()
    assert (len(free), len(cached), scheduler.num_free_blocks) == (18, 2, 20)
    assert sorted([*free, *cached]) == list(range(20))
    assert cached.dtype == free.dtype
    scheduler.reset_prefix_cache()
    assert (len(scheduler.free_blocks()), len(scheduler.cached_free_blocks())) == (20, 0)


def test_running_requests_count_the_blocks_that_they_share_once() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, TEXT, 5)
    step(scheduler)
    add(scheduler, 2, [*TEXT, 1], 5)
    step(scheduler)
    assert (scheduler.num_logical_blocks, scheduler.num_held_blocks) == (6, 4)


def test_pins_hold_a_prefix_and_are_listed_by_id() -> None:
    scheduler = make_scheduler()
    add(scheduler, 1, TEXT)
    step(scheduler)
    assert scheduler.pin(9, TEXT) == 2
    assert scheduler.pin(4, [1, 2, 3, 4, 5], "tenant") == 0
    assert [fields_of(pin) for pin in scheduler.pins()] == [(4, 5, 1, 0), (9, 9, 2, 2)]
    assert scheduler.num_free_blocks == 18
    assert scheduler.unpin(9) is True
    assert scheduler.unpin(9) is False
    assert scheduler.num_free_blocks == 20
    scheduler.check_invariants()


@pytest.mark.parametrize(
    ("pin_id", "token_ids", "message"),
    [
        (1, list(range(4)), "pin_id 1 is in use"),
        (2, list(range(17)), "token_ids fill 4 blocks, and 3 of the 5 that may be pinned are left"),
        (2, [1, 2, 3], "token_ids must fill at least one block of 4 to be pinned, got 3"),
        (2**63, list(range(4)), "pin_id must be below 2"),
        (-1, list(range(4)), "pin_id must be in"),
        (2, [1, 2, -3, 4], r"token_ids\[2\] must be in"),
    ],
)
def test_a_pin_that_cannot_be_is_refused_and_changes_nothing(pin_id: int, token_ids: list[int], message: str) -> None:
    scheduler = make_scheduler()
    scheduler.pin(1, list(range(200, 209)))
    with pytest.raises(ValueError, match=message):
        scheduler.pin(pin_id, token_ids)
    assert [fields_of(pin) for pin in scheduler.pins()] == [(1, 9, 2, 0)]


def test_arguments_of_the_wrong_type_are_named() -> None:
    with pytest.raises(TypeError, match="prefix_caching must be True or False, got 1"):
        make_scheduler(prefix_caching=1)
    with pytest.raises(ValueError, match="max_pinned_blocks must be 0 without prefix_caching, got 5"):
        make_scheduler(prefix_caching=False)
    scheduler = make_scheduler()
    with pytest.raises(TypeError, match="skip_prefix_cache must be True or False, got None"):
        add(scheduler, 1, TEXT, skip_prefix_cache=None)
    with pytest.raises(TypeError, match="pin_id must be an integer, got str"):
        scheduler.pin("1", TEXT)  # type: ignore[arg-type]


def test_one_bit_of_hash_finds_the_same() -> None:
    scheduler = make_scheduler(prefix_hash_mask=1)
    for group_id, first in enumerate((100, 200, 300)):
        add(scheduler, group_id, list(range(first, first + 9)))
        step(scheduler)
    add(scheduler, 9, [*range(200, 206), 1])
    assert step(scheduler).cached == [(9, 6)]
