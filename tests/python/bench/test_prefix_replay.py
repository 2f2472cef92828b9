"""Traces through the scheduler's prefix cache: what is counted, and that nothing is lost."""

from __future__ import annotations

import gzip
from pathlib import Path

import prefix_replay
import pytest
from prefix_traces import TraceRequest, generated_trace, ideal_hit_rate, read_trace


def request(*block_ids: int, num_prompt: int | None = None, num_out: int = 40) -> TraceRequest:
    return TraceRequest(512 * len(block_ids) if num_prompt is None else num_prompt, num_out, block_ids)


def test_an_ideal_cache_has_blocks_whose_whole_chain_was_there_before() -> None:
    trace = [request(1, 2, 3), request(1, 2, 4), request(5, 2), request(), request(1, 2, 3)]
    assert ideal_hit_rate(trace) == 5 / 11
    assert ideal_hit_rate([request()]) == 0.0


def test_a_trace_is_read_with_and_without_ids(tmp_path: Path) -> None:
    file = tmp_path / "some.csv.gz"
    file.write_bytes(
        gzip.compress(b"arrival_s,prompt_tokens,output_tokens,prefix_hash_ids\n0.1,600,7,4 9\n0.2,30,5,\n")
    )
    assert read_trace(file) == [TraceRequest(600, 7, (4, 9)), TraceRequest(30, 5, ())]
    plain = tmp_path / "lengths.csv"
    plain.write_text("arrival_s,prompt_tokens,output_tokens\n0.1,600,7\n")
    with pytest.raises(ValueError, match="must have the columns prefix_hash_ids"):
        read_trace(plain)


def test_made_up_conversations_hold_all_that_was_said_before() -> None:
    trace = generated_trace()
    assert trace == generated_trace() != generated_trace(seed=1)
    assert all(len(r.block_ids) == r.num_prompt_tokens // 512 for r in trace)
    assert 0.5 < ideal_hit_rate(trace) < 1.0


def test_a_token_stands_for_32_and_every_prompt_ends_with_one_of_its_own() -> None:
    tokens, num_out = prefix_replay.tokens_of(7, request(3, 4, num_out=320))
    assert (tokens[:16], tokens[16:32], num_out) == ([3] * 16, [4] * 16, 10)
    assert len(tokens) == 33 and tokens[32] > 1 << 23
    longer, num_out = prefix_replay.tokens_of(8, request(3, num_prompt=512 + 100, num_out=3))
    assert len(longer) == 16 + 1 + 3 and num_out == 1 and longer[16] != tokens[32]
    assert prefix_replay.blocks_of(request(3, 4, num_out=320)) == 3


@pytest.mark.parametrize("in_flight", [1, 7])
def test_without_evictions_the_scheduler_finds_what_an_ideal_cache_has(in_flight: int) -> None:
    trace = generated_trace()[:200]
    unbounded, *smaller = prefix_replay.pool_sizes(trace)
    run = prefix_replay.replay(trace, unbounded, in_flight)
    assert run.num_evicted == 0
    assert run.hit_rate == ideal_hit_rate(trace)
    small = prefix_replay.replay(trace, smaller[0], in_flight)
    assert small.num_evicted > 0
    assert small.num_found < run.num_found
    assert f"| {small.hit_rate:.4f} |" in prefix_replay.table("some", ideal_hit_rate(trace), [run, small])


def test_pools_go_from_the_longest_request_to_all_of_them() -> None:
    trace = [request(1, 2, 3), request(*range(10, 22)), request(9)]
    assert prefix_replay.pool_sizes(trace) == [4 + 13 + 2 + 2, 15]
    assert prefix_replay.pool_sizes(trace * 2) == [2 * 19 + 2, 15, 22, 33]


def test_a_curve_ends_with_the_first_pool_that_nothing_has_to_leave() -> None:
    runs = prefix_replay.curve("made up", generated_trace()[:200], in_flight=4)
    assert runs[0].num_evicted == 0
    assert [run.num_evicted > 0 for run in runs[1:]] == [True] * (len(runs) - 2) + [False]


def test_with_room_for_the_rest_on_the_host_a_small_pool_finds_what_an_ideal_cache_has() -> None:
    trace = generated_trace()[:200]
    unbounded, smallest, *_ = prefix_replay.pool_sizes(trace)
    alone = prefix_replay.replay(trace, smallest, 4)
    tiered = prefix_replay.replay(trace, smallest, 4, num_host_blocks=unbounded)
    assert tiered.num_evicted == 0
    assert tiered.hit_rate == ideal_hit_rate(trace) > alone.hit_rate
    assert tiered.num_found_on_host > 0
    assert tiered.num_moved > 0
    small = prefix_replay.replay(trace, smallest, 4, num_host_blocks=smallest)
    assert small.num_evicted > 0
    assert alone.num_found <= small.num_found <= tiered.num_found


def test_a_curve_beside_a_host_pool_ends_when_nothing_is_lost() -> None:
    trace = generated_trace()[:200]
    unbounded = prefix_replay.pool_sizes(trace)[0]
    (run,) = prefix_replay.curve("made up", trace, 4, unbounded)
    assert (run.num_host_blocks, run.num_evicted) == (unbounded, 0)
