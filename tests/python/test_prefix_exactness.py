"""Cold against warm: a prefix that is found gives the same bits as one that is computed, for every length of what is
found, block size and chunk size, while blocks are evicted and requests preempted, on every op table."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from exactness import Answer, Request, Variant, answer, first_difference, run, step
from isas import EVERY_ISA
from tiny_model import write_tiny_llama

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine import make_scheduler
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams

VOCAB = 256
# Block size, most tokens of a step per sequence (0: no limit), lengths of what is shared with an earlier prompt.
HITS: tuple[tuple[int, int, Sequence[int]], ...] = (
    (1, 0, range(4)),
    (8, 7, range(25)),
    (16, 0, range(49)),
    (16, 1, (0, 1, 15, 16, 17, 31, 33, 47, 48)),
    (32, 64, (0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 95, 96)),
    (100, 0, (0, 1, 16, 50, 99, 100, 101, 163, 200, 300)),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), seed=7)


def config_of(model: Path, isa: str, block_size: int, **changes: object) -> EngineConfig:
    base = EngineConfig(
        model=str(model), isa=isa, max_model_len=512, block_size=block_size, num_blocks=-(-2048 // block_size),
        max_num_seqs=32, max_num_batched_tokens=512, num_threads=2,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def params_of(index: int) -> SamplingParams:
    """Greedy and seeded in turn, some with their prompt scored."""
    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=index % 4, detokenize=False)
    seeded = {"seed": index, "temperature": 0.9, "top_k": 40} if index % 2 else {"temperature": 0.0}
    return replace(params, **seeded, prompt_logprobs=2 if index % 5 == 4 else None)  # type: ignore[arg-type]


def ids(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCAB) for _ in range(length))


def other(token_id: int) -> int:
    return (token_id + 1) % VOCAB


def ask(engine: LLMEngine, request: Request) -> RequestOutput:
    """With every free block that holds nothing full of NaN."""
    engine.add_request("r", list(request.prompt), request.params)
    while True:
        for output in step(engine, poison=True):
            if output.finished:
                return output


def check_hits(model: Path, isa: str, block_size: int, chunk: int, lengths: Sequence[int]) -> None:
    stem = ids(1, 4 * block_size)
    requests = [
        Request((*stem[:length], other(stem[length]), *ids(length, 4)), params_of(i))
        for i, length in enumerate(lengths)
    ]
    requests += [Request(stem, params_of(0)), Request(stem[: 2 * block_size], params_of(1))]
    most = [*lengths, len(stem) - 1, 2 * block_size - 1]
    cold_config = config_of(model, isa, 16, enable_prefix_caching=False)
    cold = run(Variant("cold", cold_config), requests)
    engine = LLMEngine(config_of(model, isa, block_size, long_prefill_token_threshold=chunk))
    try:
        warm: list[Answer] = []
        for request, length in zip(requests, most, strict=True):
            engine.reset_prefix_cache()
            ask(engine, Request(stem, params_of(0)))
            output = ask(engine, request)
            assert output.num_cached_tokens == (length if request.params.prompt_logprobs is None else 0)
            warm.append(answer(output))
        assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    finally:
        engine.close()
    difference = first_difference(cold, warm)
    assert difference is None, f"{isa}, blocks of {block_size}, chunks of {chunk}: {difference}"


@pytest.mark.parametrize(("block_size", "chunk", "lengths"), HITS)
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_what_is_found_gives_the_bits_of_what_is_computed_for_every_length(
    isa: str, block_size: int, chunk: int, lengths: Sequence[int], model: Path
) -> None:
    if isa == "amx_emulated":  # slow
        lengths = lengths[:: max(1, len(lengths) // 8)]
    check_hits(model, isa, block_size, chunk, lengths)


# ---- while others want the room


def family(num_requests: int, seed: int) -> list[Request]:
    """Prompts that begin as others do, for one to three stretches, and then go their own way."""
    rng = random.Random(seed)
    stretches = [ids(100 + i, rng.randint(5, 23)) for i in range(3)]
    requests = []
    for i in range(num_requests):
        shared = [token for _ in range(rng.randint(1, 3)) for token in rng.choice(stretches)]
        prompt = (*shared[: rng.randint(1, len(shared))], *ids(200 + i, rng.randint(0, 9)))
        requests.append(Request(prompt, replace(params_of(i), max_tokens=rng.randint(3, 20))))
    return requests


def run_in_turns(
    engine: LLMEngine, requests: Sequence[Request], before_step: Callable[[], None]
) -> list[RequestOutput]:
    """Three requests arrive at each step."""
    outputs: dict[int, RequestOutput] = {}
    arriving = list(enumerate(requests))
    while arriving or engine.has_unfinished_requests():
        for i, request in arriving[:3]:
            salt = {"cache_salt": "s"} if i % 4 == 3 else {}
            engine.add_request(str(i), {"prompt_token_ids": list(request.prompt), **salt}, request.params)
        del arriving[:3]
        before_step()
        for output in step(engine, poison=True):
            if output.finished:
                outputs[int(output.request_id)] = output
    return [outputs[i] for i in range(len(requests))]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize(("block_size", "chunk"), [(1, 0), (4, 3), (16, 0)])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_eviction_preemption_and_resets_change_no_answer(
    isa: str, block_size: int, chunk: int, mode: str, model: Path
) -> None:
    requests = family(24, seed=3)
    cold = run(Variant("cold", config_of(model, isa, 16, enable_prefix_caching=False)), requests)
    tight = config_of(
        model, isa, block_size, num_blocks=-(-224 // block_size), preemption_mode=mode, swap_space=0.01,
        long_prefill_token_threshold=chunk, watermark=0.0,
    )  # fmt: skip
    engine = LLMEngine(tight)
    rng = random.Random(5)

    def disturb() -> None:
        if rng.random() < 0.02:
            engine.reset_prefix_cache()
        for group_id in range(engine._next_group_id):
            if rng.random() < 0.05:
                engine.scheduler.preempt(group_id, mode)

    try:
        for _ in range(2):
            outputs = run_in_turns(engine, requests, disturb)
            difference = first_difference(cold, [answer(output) for output in outputs])
            assert difference is None, f"{isa}, blocks of {block_size}, {mode}: {difference}"
        stats = engine.scheduler.stats
        assert stats.num_prefix_tokens_found > 0
        assert stats.num_cached_blocks_evicted > 0
        assert stats.num_partial_prefix_blocks > 0 or block_size == 1
        assert stats.num_preemptions > 0
        moved = stats.num_groups_swapped_out, stats.num_groups_swapped_in, stats.num_blocks_swapped_out
        assert [number > 0 for number in moved] == [mode == "swap"] * 3
        if block_size > 1:  # else all is in the cache, and the device still has it when they come back
            assert (stats.num_blocks_swapped_in > 0) == (mode == "swap")
        assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    finally:
        engine.close()


# ---- through the host

BYTES_PER_TOKEN = 256  # of K and V, in this model


def branching(requests: Sequence[Request]) -> list[Request]:
    """The same, some with samples and some with beams."""
    made = []
    for i, request in enumerate(requests):
        scored = request.params.prompt_logprobs is not None
        if i % 5 == 1 and not scored:
            params = replace(request.params, n=3, temperature=0.9, seed=i)
        elif i % 5 == 3 and not scored:
            params = SamplingParams(
                max_tokens=request.params.max_tokens, use_beam_search=True, n=3, temperature=0.0, ignore_eos=True,
                logprobs=request.params.logprobs, detokenize=False,
            )  # fmt: skip
        else:
            params = request.params
        made.append(Request(request.prompt, params))
    return made


@pytest.mark.parametrize("hash_mask", [(1 << 64) - 1, 1])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_a_cache_that_goes_through_the_host_changes_no_answer(
    isa: str, block_size: int, hash_mask: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa == "amx_emulated" and block_size != 4:
        pytest.skip("slow: one block size is enough there")
    requests = branching(family(20, seed=4))
    cold = run(Variant("cold", config_of(model, isa, 16, enable_prefix_caching=False)), requests)
    monkeypatch.setattr(make_scheduler, "_type", lambda *_: partial(_core.Scheduler, prefix_hash_mask=hash_mask))
    num_tokens = 160
    num_host_blocks = num_tokens // block_size
    tight = config_of(
        model, isa, block_size, num_blocks=num_tokens // block_size, watermark=0.0, preemption_mode="swap",
        swap_space=num_host_blocks * block_size * BYTES_PER_TOKEN / 2**30,
    )  # fmt: skip
    engine = LLMEngine(tight)
    rng = random.Random(6)

    def disturb() -> None:  # by swap and by recompute at once
        engine.scheduler.set_costs(_core.PreemptionCosts())  # whatever was measured, all that is evicted is copied
        if rng.random() < 0.01:
            engine.reset_prefix_cache()
        for group_id in range(engine._next_group_id):
            if rng.random() < 0.04:
                engine.scheduler.preempt(group_id, rng.choice(("swap", "recompute")))

    try:
        assert engine.scheduler.num_host_blocks == num_host_blocks
        for _ in range(2):
            outputs = run_in_turns(engine, requests, disturb)
            difference = first_difference(cold, [answer(output) for output in outputs])
            assert difference is None, f"{isa}, blocks of {block_size}: {difference}"
        stats = engine.scheduler.stats
        assert stats.num_prefix_blocks_demoted > 0
        assert stats.num_prefix_blocks_promoted > 0
        assert stats.num_host_prefix_tokens_found > 0
        assert stats.num_host_cached_blocks_evicted > 0
        assert stats.num_blocks_swapped_in > 0
        assert stats.num_tokens_recomputed > 0
        assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
        assert engine.scheduler.num_free_host_blocks == num_host_blocks
        free = [*engine.scheduler.free_host_blocks(), *engine.scheduler.cached_free_host_blocks()]
        assert sorted(free) == list(range(num_host_blocks))
    finally:
        engine.close()
