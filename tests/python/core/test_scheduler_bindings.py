"""What crosses between Python and the scheduler: values, views, lifetimes and refusals."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest

from fastpaged._core import BatchBuilder, FinishReason, SamplingParams, Scheduler

CONFIG = {
    "num_blocks": 8,
    "block_size": 2,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 20,
}
SAMPLING: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": 0,
    "num_logprobs": None,
}


def make_scheduler(**changes: Any) -> Scheduler:
    return Scheduler(**{**CONFIG, **changes})


def make_sampling(**changes: Any) -> SamplingParams:
    return SamplingParams(**{**SAMPLING, **changes})


def test_one_request_travels_from_prompt_to_its_end() -> None:
    scheduler = make_scheduler()
    builder = BatchBuilder(scheduler)
    scheduler.add(2**64 - 1, [4, 5, 6], make_sampling(), 3, [9])
    plan = scheduler.schedule()
    assert plan.scheduled == [(2**64 - 1, 0, 3)]
    assert (plan.num_tokens, plan.num_samples, plan.preempted) == (3, 1, [])
    batch = builder.build(plan)
    assert batch.token_ids.tolist() == [4, 5, 6]
    assert batch.positions.tolist() == [0, 1, 2]
    assert batch.slot_mapping.tolist() == [0, 1, 2]
    assert batch.query_start.tolist() == [0, 3]
    assert batch.context_lens.tolist() == [3]
    assert batch.block_tables.tolist() == [[0, 1]]
    assert batch.sample_rows.tolist() == [2]
    (event,) = scheduler.update_tokens(plan, [7])
    assert (event.group_id, event.token_id, event.sample_row, event.finish_reason) == (2**64 - 1, 7, 0, None)
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_free_blocks) == (1, 0, 6)
    assert scheduler.num_preemptions(2**64 - 1) == 0
    (event,) = scheduler.update_tokens(scheduler.schedule(), [9])
    assert (event.token_id, event.finish_reason) == (9, FinishReason.STOP)
    assert not scheduler.has_unfinished()
    assert scheduler.num_free_blocks == scheduler.num_blocks == 8


def test_a_row_of_nan_is_an_error_without_a_token() -> None:
    scheduler = make_scheduler()
    scheduler.add(1, [4], make_sampling(), 3, [])
    (event,) = scheduler.update_tokens(scheduler.schedule(), [None])
    assert (event.token_id, event.sample_row, event.finish_reason) == (None, None, FinishReason.ERROR)
    assert [reason.name for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)] == [
        "STOP",
        "LENGTH",
        "ABORT",
    ]


def test_batch_arrays_are_read_only_views_of_int32() -> None:
    scheduler = make_scheduler()
    builder = BatchBuilder(scheduler)
    scheduler.add(1, [4, 5], make_sampling(), 3, [])
    batch = builder.build(scheduler.schedule())
    for name in (
        "token_ids",
        "positions",
        "slot_mapping",
        "query_start",
        "context_lens",
        "block_tables",
        "sample_rows",
    ):
        array = getattr(batch, name)
        assert array.dtype == np.int32, name
        assert not array.flags.owndata, name
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert batch.block_tables.shape == (1, 1)


def test_an_array_keeps_alive_all_that_it_points_into() -> None:
    scheduler = make_scheduler()
    builder = BatchBuilder(scheduler)
    scheduler.add(1, [4, 5, 6], make_sampling(), 3, [])
    array = builder.build(scheduler.schedule()).token_ids
    del scheduler, builder
    gc.collect()
    others = [BatchBuilder(make_scheduler()) for _ in range(50)]  # would take the memory, were it free
    assert array.tolist() == [4, 5, 6]
    assert len(others) == 50


def test_a_builder_keeps_its_scheduler_alive() -> None:
    builder = BatchBuilder(make_scheduler())
    gc.collect()
    other = make_scheduler()
    with pytest.raises(ValueError, match="plan must be the last one"):
        builder.build(other.schedule())


def test_an_empty_plan_is_an_empty_batch() -> None:
    scheduler = make_scheduler()
    batch = BatchBuilder(scheduler).build(scheduler.schedule())
    assert batch.token_ids.tolist() == []
    assert batch.block_tables.shape == (0, 0)
    assert batch.query_start.tolist() == [0]


def test_prompts_may_be_any_sequence_of_integers() -> None:
    prompts: list[Any] = [[1, 2], (1, 2), np.array([1, 2], np.int32), np.array([1, 2], np.uint64), range(1, 3)]
    for prompt in prompts:
        scheduler = make_scheduler()
        scheduler.add(1, prompt, make_sampling(), 3, [])
        assert BatchBuilder(scheduler).build(scheduler.schedule()).token_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_blocks", 0, "num_blocks must be > 0, got 0"),
        ("num_blocks", 2**31, "num_blocks must be in [-2147483648, 2147483647], got 2147483648"),
        ("block_size", 257, "block_size must be in [1, 256], got 257"),
        ("max_num_seqs", 0, "max_num_seqs must be >= 1, got 0"),
        ("max_num_batched_tokens", 0, "max_num_batched_tokens must be >= 1, got 0"),
        ("max_model_len", 1, "max_model_len must be >= 2, got 1"),
        ("num_host_blocks", -1, "num_host_blocks must be >= 0, got -1"),
        ("num_host_blocks", 2**31, "num_host_blocks must be in [-2147483648, 2147483647], got 2147483648"),
    ],
)
def test_a_wrong_size_is_refused_by_name(field: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_scheduler(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.5, "temperature must be finite and >= 0, got -0.500000"),
        ("temperature", float("nan"), "temperature must be finite and >= 0, got nan"),
        ("temperature", float("inf"), "temperature must be finite and >= 0, got inf"),
        ("top_p", 0.0, "top_p must be in (0, 1], got 0.000000"),
        ("top_p", 1.5, "top_p must be in (0, 1], got 1.500000"),
        ("top_k", -1, "top_k must be in [0, 2147483647], got -1"),
        ("min_p", -1.0, "min_p must be in [0, 1], got -1.000000"),
        ("seed", -1, "seed must be in [0, 18446744073709551615], got -1"),
        ("seed", 2**64, "seed must be in [0, 18446744073709551615], got 18446744073709551616"),
        ("num_logprobs", -1, "num_logprobs must be in [0, 2147483647], got -1"),
    ],
)
def test_a_wrong_sampling_param_is_refused_by_name(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_sampling(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_id": -1}, "group_id must be in [0, 18446744073709551615], got -1"),
        ({"prompt_token_ids": []}, "prompt_token_ids is empty: at least one token is needed"),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids[1] must be in [0, 2147483647], got -1"),
        ({"prompt_token_ids": [1, 2**40]}, "prompt_token_ids[1] must be in [0, 2147483647], got 1099511627776"),
        (
            {"prompt_token_ids": [1] * 20},
            "prompt_token_ids has 20 tokens; at most 19 fit: max_model_len is 20, and one is the answer's",
        ),
        (
            {"prompt_token_ids": [1] * 17},
            "prompt_token_ids has 17 tokens; at most 16 fit: the KV cache has 8 blocks of 2",
        ),
        ({"max_tokens": 0}, "max_tokens must be >= 1, got 0"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0] must be in [0, 2147483647], got 2147483648"),
    ],
)
def test_a_wrong_request_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    scheduler = make_scheduler()
    request: dict[str, Any] = {"group_id": 1, "prompt_token_ids": [1], "max_tokens": 1, "stop_token_ids": []}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        scheduler.add(sampling=make_sampling(), **{**request, **changes})
    assert not scheduler.has_unfinished()


def test_what_is_no_integer_is_a_type_error_that_names_the_argument() -> None:
    scheduler = make_scheduler()
    for prompt, message in (
        ("ab", r"prompt_token_ids\[0\] must be an integer, got str"),
        ([1, 2.0], r"prompt_token_ids\[1\] must be an integer, got float"),
        (5, "prompt_token_ids must be a sequence of integers, got int"),
    ):
        with pytest.raises(TypeError, match=message):
            scheduler.add(1, prompt, make_sampling(), 1, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="group_id must be an integer, got float"):
        scheduler.abort(1.5)  # type: ignore[arg-type]


def test_a_plan_is_updated_once_with_a_token_per_draw() -> None:
    scheduler = make_scheduler()
    scheduler.add(1, [4], make_sampling(), 3, [])
    plan = scheduler.schedule()
    with pytest.raises(ValueError, match="tokens must have one entry per score and draw: the plan has 1, got 2"):
        scheduler.update_tokens(plan, [1, 2])
    assert len(scheduler.update_tokens(plan, [1])) == 1
    with pytest.raises(ValueError, match="plan must be the last one and not updated yet"):
        scheduler.update_tokens(plan, [1])
    with pytest.raises(ValueError, match="group_id 5 is not here"):
        scheduler.num_preemptions(5)


def test_a_prompt_with_logprobs_goes_in_chunks_of_the_rows_there_are() -> None:
    scheduler = make_scheduler(max_num_rows=7)  # three beside one for each of max_num_seqs
    builder = BatchBuilder(scheduler)
    scheduler.add(1, [4, 5, 6, 7, 8, 9], make_sampling(num_prompt_logprobs=2), 3, [])
    plan = scheduler.schedule()
    assert plan.scheduled == [(1, 0, 4)]
    assert (plan.num_tokens, plan.num_samples, plan.num_rows) == (4, 0, 4)
    assert builder.build(plan).sample_rows.tolist() == [0, 1, 2, 3]
    (event,) = scheduler.update_tokens(plan, [0, 0, 0, 0])
    assert (event.score_rows, event.sample_row, event.token_id, event.finish_reason) == ((0, 4), None, None, None)
    plan = scheduler.schedule()
    assert (plan.scheduled, plan.num_samples, plan.num_rows) == ([(1, 4, 2)], 1, 2)
    (event,) = scheduler.update_tokens(plan, [0, 7])
    assert (event.score_rows, event.sample_row, event.token_id, event.finish_reason) == ((0, 1), 1, 7, None)
    (event,) = scheduler.update_tokens(scheduler.schedule(), [7])
    assert (event.score_rows, event.sample_row) == (None, 0)


def test_rows_of_logits_are_refused_when_they_are_too_few_for_the_sequences() -> None:
    with pytest.raises(ValueError, match=r"max_num_rows must be 0 \(no limit\) or >= max_num_seqs = 4, got 3"):
        make_scheduler(max_num_rows=3)
    with pytest.raises(ValueError, match="max_num_rows"):
        make_scheduler(max_num_rows=-1)
    with pytest.raises(ValueError, match="num_prompt_logprobs"):
        make_sampling(num_prompt_logprobs=-1)
