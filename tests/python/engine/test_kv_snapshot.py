"""kv_snapshot(): what an engine says of its KV memory is what its requests hold, by the names that users gave them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter

import pytest
from engine.async_tools import Gate, until
from engine.fakes import toy_engine

from fastpaged import EngineClosedError, KVSnapshot, SamplingParams
from fastpaged.engine.async_llm_engine import AsyncLLMEngine
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.kv_snapshot import KVBlock, KVTier

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9, 10]  # a block of 4, and two tokens


def check(snapshot: KVSnapshot) -> None:
    """What holds of any snapshot."""
    bills = [request.bill for request in snapshot.requests] + [pin.bill for pin in snapshot.pins]
    charged = sum(bill.charged for bill in bills)
    saved = sum(bill.saved for bill in bills)
    tiers = (snapshot.device, snapshot.host)
    assert charged == sum(block.ref_count > 0 for tier in tiers for block in tier.blocks)
    assert saved * snapshot.block_size == sum(tier.split.saved for tier in tiers)
    for tier in tiers:
        split = tier.split
        parts = split.token_states + split.reserved + split.internal_waste + split.external_waste + split.free
        assert parts + split.quarantined == split.num_slots == snapshot.block_size * len(tier.blocks)
        assert split.in_use == snapshot.block_size * len(held(tier))
        assert split.token_states == sum(block.num_tokens for block in held(tier))
        assert [block.id for block in tier.blocks] == list(range(len(tier.blocks)))


def held(tier: KVTier) -> list[KVBlock]:
    return [block for block in tier.blocks if block.ref_count > 0]


def run(engine: LLMEngine, num_steps: int) -> None:
    for _ in range(num_steps):
        engine.step()
        check(engine.kv_snapshot())


def test_an_idle_engine_has_all_slots_free() -> None:
    snapshot = toy_engine(num_blocks=8).kv_snapshot()
    check(snapshot)
    assert snapshot.step == 0
    assert snapshot.device.split.free == 32
    assert snapshot.device.split.token_state_share == 1.0
    assert snapshot.requests == ()
    assert all(block.age is None for block in snapshot.device.blocks)


def test_a_request_is_billed_by_the_name_that_the_user_gave_it() -> None:
    engine = toy_engine()
    engine.add_request("mine", {"prompt_token_ids": PROMPT}, GREEDY)
    waiting = engine.kv_snapshot().requests[0]
    assert (waiting.request_id, waiting.state, waiting.steps_in_line) == ("mine", "waiting", 0)
    assert waiting.bill.held == 0
    engine.step()
    snapshot = engine.kv_snapshot()
    check(snapshot)
    (request,) = snapshot.requests
    assert (request.state, request.steps_in_line) == ("running", None)
    assert (request.num_prompt_tokens, request.num_output_tokens) == (6, 1)
    assert (request.bill.logical, request.bill.owned, request.bill.shared, request.bill.charged) == (2, 2, 0, 2)
    assert snapshot.device.split.token_states == 6
    assert snapshot.device.split.internal_waste == 2
    holders = [(block.holders[0].request_id, block.holders[0].index) for block in held(snapshot.device)]
    assert sorted(holders) == [("mine", 0), ("mine", 1)]
    assert [block.cached for block in held(snapshot.device)] == [True, False]
    assert all(block.age == 0 for block in held(snapshot.device))


def test_samples_share_their_prompt_and_the_bill_says_what_that_saves() -> None:
    engine = toy_engine()
    engine.add_request("three", {"prompt_token_ids": PROMPT}, dataclasses.replace(GREEDY, n=3, temperature=1.0))
    run(engine, 2)
    (request,) = engine.kv_snapshot().requests
    assert request.num_sequences == 3
    assert request.bill.logical == 6
    assert (request.bill.owned, request.bill.shared) == (4, 0)  # a block of the prompt for all, and one each
    assert request.bill.saved == 2


def test_the_first_who_came_is_charged_for_what_two_requests_share() -> None:
    engine = toy_engine()
    engine.add_request("first", {"prompt_token_ids": PROMPT}, GREEDY)
    run(engine, 1)
    engine.add_request("second", {"prompt_token_ids": PROMPT}, GREEDY)
    run(engine, 1)
    first, second = engine.kv_snapshot().requests
    assert (first.bill.shared, first.bill.charged) == (1, 2)
    assert (second.bill.shared, second.bill.charged, second.bill.saved) == (1, 1, 1)
    engine.abort_request("first")
    (second,) = engine.kv_snapshot().requests
    assert (second.bill.shared, second.bill.charged, second.bill.saved) == (0, 2, 0)


def test_a_pin_is_charged_before_requests() -> None:
    engine = toy_engine()
    engine.add_request("computes", {"prompt_token_ids": PROMPT}, GREEDY)
    run(engine, 1)
    pin = engine.pins.prepare(PROMPT, None, None)
    assert engine.pins.hold(pin)
    snapshot = engine.kv_snapshot()
    check(snapshot)
    (seen,) = snapshot.pins
    assert (seen.pin_id, seen.num_blocks, seen.bill.charged) == (pin.id, 1, 1)
    assert snapshot.requests[0].bill.saved == 1
    assert snapshot.device.split.pinned == 4
    (block,) = [block for block in snapshot.device.blocks if block.pinned]
    assert [(holder.pin_id, holder.request_id) for holder in block.holders] == [(pin.id, None), (None, "computes")]


def test_a_swapped_request_is_billed_on_the_host() -> None:
    engine = toy_engine(num_blocks=8, num_host_blocks=8, preemption_mode="swap")
    for name in ("a", "b"):
        engine.add_request(name, {"prompt_token_ids": [ord(name), *PROMPT]}, GREEDY)
    states: Counter[str] = Counter()
    while engine.has_unfinished_requests():
        run(engine, 1)
        snapshot = engine.kv_snapshot()
        states.update(request.state for request in snapshot.requests)
        for request in snapshot.requests:
            if request.state == "swapped":
                assert request.bill.held == len(held(snapshot.host))
                assert request.num_preemptions > 0
                assert snapshot.host.split.token_states == request.num_computed_tokens
    assert states["swapped"] > 0


def test_a_block_in_quarantine_is_neither_in_use_nor_free() -> None:
    engine = toy_engine(num_blocks=8, enable_prefix_caching=False)
    for name in ("broken", "other"):
        engine.add_request(name, {"prompt_token_ids": PROMPT}, GREEDY)
    engine.step()
    engine.scheduler._give_back_too_early(0)
    while engine.scheduler.num_quarantined_blocks == 0:
        engine.step()
    snapshot = engine.kv_snapshot()
    check(snapshot)
    assert snapshot.device.split.quarantined == snapshot.block_size
    assert snapshot.device.split.in_use > 0


def test_a_hash_names_what_a_block_holds_in_every_engine() -> None:
    names = []
    for others in (0, 3):
        engine = toy_engine()
        for i in range(others):
            engine.add_request(f"other{i}", {"prompt_token_ids": [20 + i] * 9}, GREEDY)
        engine.add_request("one", {"prompt_token_ids": PROMPT}, GREEDY)
        engine.add_request("salted", {"prompt_token_ids": PROMPT, "cache_salt": "s"}, GREEDY)
        run(engine, 1)
        by_name = {
            block.holders[0].request_id: block.content_hash
            for block in held(engine.kv_snapshot().device)
            if block.cached
        }
        names.append((by_name["one"], by_name["salted"]))
    assert names[0] == names[1]
    assert names[0][0] != names[0][1]


def test_a_blocks_age_counts_steps_in_which_nobody_took_or_wrote_it() -> None:
    engine = toy_engine()
    engine.add_request("one", {"prompt_token_ids": PROMPT}, GREEDY)
    run(engine, 5)
    ages = {block.holders[0].index: block.age for block in held(engine.kv_snapshot().device)}
    assert ages == {0: 4, 1: 2, 2: 0}  # 6 tokens in the first step, then one in each: positions 6 to 9


def test_a_snapshot_is_json_and_a_table() -> None:
    engine = toy_engine(num_host_blocks=4)
    engine.add_request("a request", {"prompt_token_ids": PROMPT}, GREEDY)
    run(engine, 2)
    snapshot = engine.kv_snapshot()
    read = json.loads(json.dumps(snapshot.to_dict()))
    assert read["tiers"]["device"]["split"]["token_states"] == 7
    assert read["tiers"]["device"]["split"]["external_waste"] == 0
    assert len(read["tiers"]["host"]["blocks"]) == 4
    assert read["requests"][0]["bill"]["held"] == 2
    names = [block["content_hash"] for block in read["tiers"]["device"]["blocks"] if block["cached"]]
    assert [len(name) for name in names] == [16]
    lines = str(snapshot).splitlines()
    assert lines[0] == "KV cache, step 2: blocks of 4 tokens"
    assert any(line.startswith("device") and "2.7%" in line for line in lines)
    assert any(line.startswith("a request") and "running" in line for line in lines)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_step_under_way_is_said_to_be(overlaps: bool) -> None:
    engine = toy_engine(async_scheduling=overlaps)
    engine.add_request("one", {"prompt_token_ids": PROMPT}, GREEDY)
    run(engine, 1)
    snapshot = engine.kv_snapshot()
    assert snapshot.planned == overlaps
    assert snapshot.device.split.reserved == (1 if overlaps else 0)


def test_a_snapshot_comes_between_steps_of_an_async_engine() -> None:
    async def ask() -> KVSnapshot:
        engine = AsyncLLMEngine.with_engine(toy_engine())
        gate = Gate(engine)
        try:
            generator = engine.generate({"prompt_token_ids": PROMPT}, GREEDY, "async")
            gate.let(1)
            await anext(generator)
            asked = asyncio.ensure_future(engine.kv_snapshot())
            await until(lambda: not engine._thread._commands.empty())
            gate.let(1000)
            snapshot = await asked
            await generator.aclose()
            return snapshot
        finally:
            engine.shutdown()

    snapshot = asyncio.run(ask())
    check(snapshot)
    assert [request.request_id for request in snapshot.requests] == ["async"]


def test_a_closed_engine_has_nothing_to_show() -> None:
    engine = toy_engine()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.kv_snapshot()
