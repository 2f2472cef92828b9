"""kv_events(): whoever applies all of them knows what is cached."""

from __future__ import annotations

import random

import pytest
from engine.fakes import toy_engine

from fastpaged import (
    AllBlocksCleared,
    BlockMoved,
    BlockRemoved,
    BlockStored,
    InvalidRequestError,
    KVSnapshot,
    SamplingParams,
)
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.kv_events import KVEvents, kv_events_of

ONCE = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def apply(events: KVEvents, cached: dict[int, str]) -> None:
    """As a follower does."""
    assert events.num_dropped == 0
    for event in events.events:
        match event:
            case BlockStored():
                assert event.block_hash not in cached
                assert event.parent_block_hash is None or event.parent_block_hash in cached
                assert event.num_tokens == 4
                cached[event.block_hash] = event.tier
            case BlockRemoved():
                assert cached.pop(event.block_hash) == event.tier
            case BlockMoved():
                assert cached[event.block_hash] != event.tier
                cached[event.block_hash] = event.tier
            case AllBlocksCleared():
                cached.clear()


def cached_in(snapshot: KVSnapshot) -> dict[int, str]:
    return {
        block.content_hash: tier.name
        for tier in (snapshot.device, snapshot.host)
        for block in tier.blocks
        if block.content_hash is not None
    }


def ask(engine: LLMEngine, prompt: list[int]) -> None:
    engine.add_request("asks", {"prompt_token_ids": prompt}, ONCE)
    while engine.has_unfinished_requests():
        engine.step()


@pytest.mark.parametrize("num_host_blocks", [0, 12])
def test_whoever_applies_all_events_knows_what_is_cached(num_host_blocks: int) -> None:
    draws = random.Random(7)
    engine = toy_engine(num_blocks=16, num_host_blocks=num_host_blocks, kv_events=True)
    cached: dict[int, str] = {}
    for i in range(120):
        prompt = [10 + draws.randrange(2)] * draws.randrange(1, 20) + [draws.randrange(10, 60) for _ in range(4)]
        engine.add_request(f"{i}", {"prompt_token_ids": prompt}, ONCE)
        for _ in range(draws.randrange(6)):
            engine.step()
            if draws.random() < 0.5:
                apply(engine.kv_events(), cached)
                assert cached == cached_in(engine.kv_snapshot())
        if draws.random() < 0.05:
            engine.reset_prefix_cache()
    while engine.has_unfinished_requests():
        engine.step()
    apply(engine.kv_events(), cached)
    assert cached == cached_in(engine.kv_snapshot())
    assert len(cached) > 10


def test_events_say_what_was_stored_after_what_and_what_had_to_go() -> None:
    engine = toy_engine(num_blocks=4, kv_events=True)
    ask(engine, [5] * 8 + [6])
    first, second, *_ = engine.kv_events().events
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.parent_block_hash, second.parent_block_hash) == (None, first.block_hash)
    ask(engine, [7] * 9)
    removed = [event.block_hash for event in engine.kv_events().events if isinstance(event, BlockRemoved)]
    assert second.block_hash in removed
    engine.reset_prefix_cache()
    assert engine.kv_events() == KVEvents((AllBlocksCleared(),), 0)
    assert engine.kv_events() == KVEvents((), 0)


def test_beyond_the_limit_the_oldest_events_go_and_are_counted() -> None:
    from fastpaged import _core

    scheduler = _core.Scheduler(
        num_blocks=32,
        block_size=1,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=32,
        prefix_caching=True,
        max_cache_events=3,
    )
    sampling = _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
    scheduler.add(0, [1, 2, 3, 4, 5], sampling, 1, [])
    scheduler.update_tokens(scheduler.schedule(), [9])
    events = kv_events_of(scheduler.take_cache_events())
    assert len(events.events) == 3
    assert events.num_dropped == 2
    assert kv_events_of(scheduler.take_cache_events()) == KVEvents((), 0)


def test_nothing_is_kept_unless_it_was_asked_for() -> None:
    engine = toy_engine()
    ask(engine, [5] * 8)
    assert engine.scheduler.take_cache_events() == ([], 0)
    with pytest.raises(InvalidRequestError, match="kv_events=True"):
        engine.kv_events()
