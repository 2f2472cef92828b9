"""When blocks run out: ceilings, preemption by either means, and leaving from every state."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.fakes import toy_engine, toy_greedy

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import CompletionOutput, RequestOutput
from fastpaged.sampling_params import SamplingParams

MODES = ("recompute", "swap")
BLOCK_SIZE = 2
NUM_BLOCKS = 12
NUM_HOST_BLOCKS = 16
MAX_STEPS = 500


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)


def tiny_engine(model: Path, mode: str | None = None, **changes: Any) -> LLMEngine:
    """A real model with a pool of 24 slots and room on the host for 32."""
    block_bytes = BLOCK_SIZE * 256
    settings: dict[str, Any] = {
        "model": str(model),
        "isa": "scalar",
        "num_threads": 1,
        "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS,
        "swap_space": NUM_HOST_BLOCKS * block_bytes / 2**30,
        "max_num_batched_tokens": 6,
        "preemption_mode": mode,
        "enable_prefix_caching": False,
    }
    engine = LLMEngine(EngineConfig(**(settings | changes)))
    assert (engine.scheduler.num_blocks, engine.scheduler.num_host_blocks) == (NUM_BLOCKS, NUM_HOST_BLOCKS)
    return engine


def step(engine: LLMEngine) -> list[RequestOutput]:
    """Before it, every free block of both tiers is filled with NaN."""
    memory = engine.worker.kv_memory
    memory.fill_blocks(engine.scheduler.free_blocks(), float("nan"))
    memory.fill_host_blocks(engine.scheduler.free_host_blocks(), float("nan"))
    outputs = engine.step()
    engine.scheduler.check_invariants()
    return outputs


def step_until(engine: LLMEngine, reached: Callable[[list[RequestOutput]], bool], one_step: Any = step) -> None:
    for _ in range(MAX_STEPS):
        if reached(one_step(engine)):
            return
    raise AssertionError(f"not there after {MAX_STEPS} steps")


def drain(engine: LLMEngine, one_step: Any = step) -> dict[str, CompletionOutput]:
    finished: dict[str, CompletionOutput] = {}
    for _ in range(MAX_STEPS):
        if not engine.has_unfinished_requests():
            return finished
        for output in one_step(engine):
            if output.finished:
                finished[output.request_id] = output.outputs[0]
    raise AssertionError(f"unfinished after {MAX_STEPS} steps")


def assert_nothing_is_held(engine: LLMEngine) -> None:
    scheduler = engine.scheduler
    scheduler.check_invariants()
    assert not engine.has_unfinished_requests()
    assert not scheduler.has_unfinished()
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.num_swapped) == (0, 0, 0)
    free = [*scheduler.free_blocks(), *scheduler.cached_free_blocks()]
    assert sorted(free) == list(range(scheduler.num_blocks))
    assert scheduler.num_free_host_blocks == scheduler.num_host_blocks  # cached ones included


@pytest.fixture(scope="module")
def alone(tiny_llama: Path) -> Any:
    """The answer of a request that has an engine to itself."""
    known: dict[tuple[tuple[int, ...], int], CompletionOutput] = {}

    def answer(prompt: list[int], max_tokens: int) -> CompletionOutput:
        key = (tuple(prompt), max_tokens)
        if key not in known:
            engine = tiny_engine(tiny_llama)
            engine.add_request("r", prompt, greedy(max_tokens))
            known[key] = drain(engine)["r"]
            engine.close()
        return known[key]

    return answer


# ---- the ceiling


@pytest.mark.parametrize("mode", MODES)
def test_who_reaches_the_end_of_the_pool_ends_there_and_preempts_nobody(mode: str) -> None:
    """Beside it a request that is done before the pool is full, and one that has to wait until it has ended."""
    engine = toy_engine(num_blocks=6, num_host_blocks=6, block_size=2, preemption_mode=mode)
    unlimited = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    engine.add_request("short", [70, 71], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    engine.add_request("endless", [65, 66, 67, 68], unlimited)
    engine.add_request("behind", [72] * 10, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    finished = drain(engine, LLMEngine.step)
    expected = {
        "short": toy_greedy([70, 71], 2, stops=()),
        "endless": toy_greedy([65, 66, 67, 68], 12 - 4 + 1, stops=()),  # 12 slots; the last token needs none
        "behind": toy_greedy([72] * 10, 3, stops=()),
    }
    assert {name: output.token_ids for name, output in finished.items()} == expected
    assert {output.finish_reason for output in finished.values()} == {"length"}
    assert list(finished) == ["short", "endless", "behind"]
    assert engine.scheduler.stats.num_preemptions == 0
    assert_nothing_is_held(engine)


# ---- what is counted


@pytest.mark.parametrize("mode", MODES)
def test_a_request_counts_its_own_preemptions_by_either_means(mode: str) -> None:
    engine = toy_engine(
        num_blocks=6, num_host_blocks=6, block_size=2, preemption_mode=mode, enable_prefix_caching=False
    )
    for i in range(3):
        engine.add_request(str(i), [65 + i] * 3, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    counts: dict[str, int] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            counts[output.request_id] = output.metrics.num_preemptions
    stats = engine.scheduler.stats
    assert counts["0"] == 0
    assert sum(counts.values()) == stats.num_preemptions > 0
    assert stats.num_groups_swapped_out == stats.num_groups_swapped_in
    if mode == "swap":
        assert stats.num_groups_swapped_out == stats.num_preemptions
        assert stats.num_tokens_recomputed == 0
    else:
        assert stats.num_groups_swapped_out == 0
        assert stats.num_tokens_recomputed > 0


def test_a_preemption_counts_though_its_step_failed() -> None:
    engine = toy_engine(num_blocks=4, num_host_blocks=4, block_size=2, preemption_mode="swap")
    worker: Any = engine.worker
    for i in range(2):
        engine.add_request(str(i), [65 + i] * 3, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))

    def fail() -> None:
        raise RuntimeError("once")

    worker.before_step = lambda: fail() if engine.scheduler.stats.num_preemptions else None

    def step_to_failure(engine: LLMEngine) -> list[RequestOutput]:
        try:
            return engine.step()
        except RuntimeError:
            worker.before_step = None
            return []

    step_until(engine, lambda _: worker.before_step is None, step_to_failure)
    assert engine.scheduler.stats.num_preemptions == 1
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    counts = [outputs[name].metrics.num_preemptions for name in ("0", "1")]
    assert counts == [0, engine.scheduler.stats.num_preemptions]
    assert outputs["1"].outputs[0].token_ids == toy_greedy([66] * 3, 5, stops=())


def test_tokens_recomputed_after_a_step_that_failed_are_in_the_bills() -> None:
    engine = toy_engine(num_blocks=64, enable_prefix_caching=False)
    worker: Any = engine.worker
    for i in range(3):
        engine.add_request(str(i), [65 + i] * (5 + i), SamplingParams(n=2, seed=i, max_tokens=4, ignore_eos=True))
    engine.step()  # the next one copies blocks on write, and whoever has such a copy is recomputed

    def fail() -> None:
        worker.before_step = None
        raise RuntimeError("once")

    worker.before_step = fail
    with pytest.raises(RuntimeError, match="once"):
        engine.step()
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    bills = [outputs[str(i)].metrics.num_tokens_recomputed for i in range(3)]
    assert sum(bills) == engine.preemptions.totals.num_tokens_recomputed > 0
    assert all(outputs[str(i)].metrics.num_preemptions == 0 for i in range(3))


def test_swapped_bytes_are_the_scheduler_s_blocks(tiny_llama: Path) -> None:
    engine = tiny_engine(tiny_llama, "swap")
    for i in range(4):
        engine.add_request(str(i), [10 + i] * 5, greedy(12))
    drain(engine)
    stats, counted = engine.scheduler.stats, engine.worker.kv_memory.num_bytes_copied
    assert stats.num_blocks_swapped_out == stats.num_blocks_swapped_in > 0
    assert counted == {
        "swap_out": stats.num_blocks_swapped_out * BLOCK_SIZE * 256,
        "swap_in": stats.num_blocks_swapped_in * BLOCK_SIZE * 256,
        "copy_on_write": 0,
    }
    assert stats.num_tokens_recomputed == 0
    engine.close()


def test_by_the_paper_s_rule_a_request_of_one_sequence_is_recomputed(tiny_llama: Path) -> None:
    engine = tiny_engine(tiny_llama, "by_branches")
    for i in range(4):
        engine.add_request(str(i), [10 + i] * 5, greedy(12))
    drain(engine)
    assert engine.scheduler.stats.num_preemptions > 0
    assert engine.scheduler.stats.num_groups_swapped_out == 0
    engine.close()


def test_swapping_is_recomputing_without_swap_space(tiny_llama: Path, alone: Any) -> None:
    config = EngineConfig(
        model=str(tiny_llama), isa="scalar", num_threads=1, block_size=2, num_blocks=12, swap_space=0,
        preemption_mode="swap",
    )  # fmt: skip
    engine = LLMEngine(config)
    for i in range(4):
        engine.add_request(str(i), [10 + i] * 5, greedy(12))
    finished = drain(engine)
    assert engine.scheduler.stats.num_preemptions > 0
    assert engine.scheduler.stats.num_groups_swapped_out == 0
    assert finished == {str(i): alone([10 + i] * 5, 12) for i in range(4)}
    engine.close()


# ---- aborts


def into_state(engine: LLMEngine, state: str) -> None:
    """Brings request "victim" there, beside an older one that runs."""
    scheduler = engine.scheduler
    engine.add_request("older", [20] * 9, greedy(14))
    step_until(engine, lambda outputs: bool(outputs))
    prompt = [21] * (22 if state == "waiting" else 10)  # 11 blocks are not there beside the older one's
    engine.add_request("victim", prompt, greedy(8))
    if state == "waiting":
        step(engine)
        counts = (1, 1, 0)
    elif state == "prefilling":
        outputs = step(engine)
        assert [output.request_id for output in outputs] == ["older"]  # the victim's chunk sampled nothing
        counts = (2, 0, 0)
    elif state == "running":
        step_until(engine, lambda outputs: any(output.request_id == "victim" for output in outputs))
        counts = (2, 0, 0)
    else:
        step_until(engine, lambda _: scheduler.stats.num_preemptions > 0)
        counts = (1, 0, 1) if engine.config.preemption_mode == "swap" else (1, 1, 0)
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_swapped) == counts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", ["waiting", "prefilling", "running", "preempted"])
def test_an_abort_in_any_state_frees_every_block_at_once(state: str, mode: str, tiny_llama: Path, alone: Any) -> None:
    engine = tiny_engine(tiny_llama, mode)
    into_state(engine, state)
    output = engine.abort_request("victim")
    assert output is not None
    assert output.outputs[0].finish_reason == "abort"
    scheduler = engine.scheduler
    scheduler.check_invariants()
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_swapped) == (1, 0, 0)
    assert scheduler.num_free_host_blocks == NUM_HOST_BLOCKS
    assert drain(engine) == {"older": alone([20] * 9, 14)}
    assert_nothing_is_held(engine)
    engine.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", ["waiting", "prefilling", "running", "preempted"])
def test_aborting_all_leaves_nothing_and_the_engine_answers_on(
    state: str, mode: str, tiny_llama: Path, alone: Any
) -> None:
    engine = tiny_engine(tiny_llama, mode)
    into_state(engine, state)
    for name in ("older", "victim"):
        assert engine.abort_request(name) is not None
    assert_nothing_is_held(engine)
    assert engine.step() == []
    engine.add_request("victim", [21] * 10, greedy(8))
    assert drain(engine) == {"victim": alone([21] * 10, 8)}
    assert_nothing_is_held(engine)
    engine.close()


@pytest.mark.parametrize("mode", [*MODES, None])
@pytest.mark.parametrize("seed", range(4))
def test_aborts_and_forced_preemptions_at_any_step_change_no_other_answer(
    seed: int, mode: str | None, tiny_llama: Path, alone: Any
) -> None:
    rng = random.Random(seed)
    engine = tiny_engine(tiny_llama, mode, max_num_seqs=4)
    requests = {str(i): ([30 + i] * rng.choice((1, 4, 7, 12)), rng.choice((3, 8, 12))) for i in range(8)}
    waiting, finished, aborted = list(requests), {}, set()
    for _ in range(MAX_STEPS):
        if not waiting and not engine.has_unfinished_requests():
            break
        if waiting and rng.random() < 0.6:
            name = waiting.pop(0)
            engine.add_request(name, requests[name][0], greedy(requests[name][1]))
        if rng.random() < 0.1:
            name = rng.choice(list(requests))
            if (output := engine.abort_request(name)) is not None:
                aborted.add(name)
                given = len(output.outputs[0].token_ids)
                assert output.outputs[0].token_ids == alone(*requests[name]).token_ids[:given]
        if rng.random() < 0.3:
            engine.scheduler.preempt(rng.randrange(len(requests)), rng.choice(MODES))
        for output in step(engine):
            if output.finished:
                finished[output.request_id] = output.outputs[0]
    assert_nothing_is_held(engine)
    assert engine.scheduler.stats.num_preemptions > 0
    assert finished == {name: alone(*request) for name, request in requests.items() if name not in aborted}
    assert len(finished) > 3
    engine.close()


# ---- failures


@pytest.mark.parametrize("where", ["before the copies", "after the copies", "after the batch"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_fails_anywhere_is_taken_again_and_changes_no_answer(
    seed: int, mode: str, where: str, tiny_llama: Path, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    engine = tiny_engine(tiny_llama, mode)
    worker = engine.worker
    copy, execute = worker.copy, worker.execute
    num_failed_with_copies = 0

    def failing_copy(plan: Any) -> int:
        nonlocal num_failed_with_copies
        fails = rng.random() < (0.5 if plan.copies else 0.1)
        num_failed_with_copies += fails and bool(plan.copies)
        if fails and where == "before the copies":
            raise OSError("lost")
        num_bytes = copy(plan)
        if fails and where == "after the copies":
            raise OSError("lost")
        monkeypatch.setattr(worker, "execute", failing_execute if fails else execute)
        return num_bytes

    def failing_execute(batch: Any) -> Any:
        execute(batch)
        raise OSError("lost")

    monkeypatch.setattr(worker, "copy", failing_copy)
    requests = {str(i): ([30 + i] * rng.choice((4, 7, 10)), rng.choice((8, 12))) for i in range(6)}
    for name, (prompt, max_tokens) in requests.items():
        engine.add_request(name, prompt, greedy(max_tokens))

    def step_that_may_fail(engine: LLMEngine) -> list[RequestOutput]:
        try:
            return step(engine)
        except OSError:
            engine.scheduler.check_invariants()
            return []

    assert drain(engine, step_that_may_fail) == {name: alone(*request) for name, request in requests.items()}
    assert num_failed_with_copies > 0 or mode == "recompute"
    assert_nothing_is_held(engine)
    engine.close()


@pytest.mark.parametrize("mode", MODES)
def test_after_a_failed_step_anybody_may_be_aborted(mode: str, tiny_llama: Path, alone: Any) -> None:
    for abort in ("older", "victim"):
        engine = tiny_engine(tiny_llama, mode)
        into_state(engine, "running")
        for _ in range(MAX_STEPS):
            plan = engine.scheduler.schedule()  # planned, and never carried out
            if plan.preempted:
                break
            step(engine)
        assert bool(plan.copies) == (mode == "swap")
        assert engine.abort_request(abort) is not None
        other, request = ("victim", ([21] * 10, 8)) if abort == "older" else ("older", ([20] * 9, 14))
        assert drain(engine) == {other: alone(*request)}
        assert_nothing_is_held(engine)
        engine.close()


# ---- bytes


def test_what_was_computed_lies_on_the_host_and_comes_back_before_the_batch(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine(tiny_llama, "swap")
    worker, memory = engine.worker, engine.worker.kv_memory
    copy, execute = worker.copy, worker.execute
    kept: dict[int, Any] = {}  # host block -> what lay in the device block that went there
    order: list[str] = []

    def noted_copy(plan: Any) -> int:
        before = memory.array.copy()
        num_bytes = copy(plan)
        for kind, source, destination, num_blocks in plan.copies:
            order.append(kind)
            for i in range(num_blocks):
                if kind == "swap_out":
                    kept[destination + i] = before[source + i]
                    np.testing.assert_array_equal(memory.host_array[destination + i], before[source + i])
                else:
                    np.testing.assert_array_equal(memory.array[destination + i], kept.pop(source + i))
        return num_bytes

    def noted_execute(batch: Any) -> Any:
        order.append("batch")
        return execute(batch)

    monkeypatch.setattr(worker, "copy", noted_copy)
    monkeypatch.setattr(worker, "execute", noted_execute)
    into_state(engine, "preempted")
    assert len(kept) == NUM_HOST_BLOCKS - engine.scheduler.num_free_host_blocks > 0
    assert order[-2:] == ["swap_out", "batch"]
    drain(engine)
    assert kept == {}
    assert order[order.index("swap_in") + 1] in ("swap_in", "batch")
    engine.close()
