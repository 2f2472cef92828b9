"""The equality matrix: one set of requests, many ways to run it, one answer.

Shared by tests/python/test_exactness.py (a 2-layer model, every op table) and tests/exact/run_exact.py (SmolLM2).
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preemption_cost import CountingExecutor, PreemptionCost, check_bytes_between_tiers

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import Logprob, RequestOutput
from fastpaged.sampling_params import SamplingParams


@dataclass(frozen=True)
class Request:
    """A prompt as token ids, and how to sample from it."""

    prompt: tuple[int, ...]
    params: SamplingParams


# Every logprob (of the token and of alternatives) as its float32 bits: 0.0 and -0.0 differ, NaN equals NaN.
Logprobs = tuple[tuple[tuple[int, bytes, int], ...], ...]
# Token ids, their logprobs, the reason of the end, and the bits of a beam's score.
Branch = tuple[tuple[int, ...], Logprobs, str | None, bytes | None]
# Every branch of a request, and the logprobs of the prompt's tokens.
Answer = tuple[tuple[Branch, ...], Logprobs]


@dataclass(frozen=True)
class Variant:
    """One way to run the requests."""

    name: str
    config: EngineConfig
    shuffle: int | None = None  # seed of the order of arrival
    stagger: bool = False  # requests arrive while others are running
    alone: bool = False  # one at a time
    poison: bool = False  # every free block, of both tiers, full of NaN before every step
    preempt: int | None = None  # seed of the steps before which requests are preempted by force
    warm: bool = False  # all of it twice, with the prefix cache on: the second time much is found; the answers of both


@dataclass(frozen=True)
class Outcome:
    """What a way to run the requests gave, and what it cost. In the order of the requests, not of their arrival; of a
    warm way the requests are there twice, cold and warm."""

    answers: list[Answer]
    num_preemptions: list[int]
    num_cached_tokens: list[int]
    cost: PreemptionCost


def make_requests(num_requests: int, vocab_size: int, max_prompt: int, max_tokens: int, seed: int) -> list[Request]:
    """Greedy and seeded ones in turn, each filter in use, prompts from one token to max_prompt."""
    rng = random.Random(seed)
    requests = []
    for i in range(num_requests):
        prompt = tuple(
            rng.randrange(vocab_size) for _ in range(rng.choice((1, 2, 15, 16, 17, rng.randint(1, max_prompt))))
        )
        params = SamplingParams(
            max_tokens=rng.randint(max(1, max_tokens // 2), max_tokens),
            ignore_eos=True,
            logprobs=i % 4,
            prompt_logprobs=(None, 2, 0)[i % 3],
        )
        if i % 2:
            params = replace(
                params,
                seed=rng.getrandbits(63),
                temperature=rng.choice((0.3, 0.8, 1.0, 1.7)),
                top_p=rng.choice((1.0, 0.9)),
                top_k=rng.choice((0, 5, 40)),
                min_p=rng.choice((0.0, 0.05)),
            )
        else:
            params = replace(params, temperature=0.0)
        requests.append(Request(prompt, params))
    return requests


def make_forked_requests(
    num_requests: int, vocab_size: int, max_prompt: int, max_tokens: int, seed: int
) -> list[Request]:
    """Four samples and four beams in turn; the others of prompts as they come."""
    made = make_requests(num_requests, vocab_size, max_prompt, max_tokens, seed)
    for i, request in enumerate(made):
        params = request.params
        if i % 2:
            params = replace(params, n=4, best_of=6 if i % 8 == 5 else None)
        else:
            stops = tuple(range(i, i + 40)) if i % 4 else ()  # so that many a beam ends before the others
            params = replace(params, use_beam_search=True, n=4, stop_token_ids=stops)
        made[i] = Request(request.prompt, params)
    return made


Case = tuple[str, str]  # isa, kv_cache_dtype


def base_config(model: Path, case: Case) -> EngineConfig:
    """A small engine with room for all, and no prefix cache: what the variants change."""
    return EngineConfig(
        model=str(model), isa=case[0], kv_cache_dtype=case[1], max_model_len=400, block_size=16, num_blocks=320,
        max_num_seqs=32, max_num_batched_tokens=512, num_threads=2, enable_prefix_caching=False,
    )  # fmt: skip


def variants(
    base: EngineConfig, chunks: Sequence[int], block_sizes: Sequence[int], threads: Sequence[int]
) -> Iterator[Variant]:
    """The matrix around `base`: company, order, chunking, block size, thread count, poisoned memory."""

    def config(**changes: Any) -> EngineConfig:
        changed = replace(base, **changes)
        tokens = (base.num_blocks or 0) * base.block_size
        return replace(changed, num_blocks=-(-tokens // changed.block_size))

    yield Variant("together", config())
    yield Variant("together again, poisoned", config(), poison=True)
    yield Variant("shuffled", config(), shuffle=1, poison=True)
    yield Variant("staggered", config(), shuffle=2, stagger=True, poison=True)
    for chunk in chunks:
        yield Variant(f"chunks of {chunk}", config(long_prefill_token_threshold=chunk), poison=True)
    yield Variant("token budget 33", config(max_num_batched_tokens=33), shuffle=3, poison=True)
    yield Variant("512 at a time", config(max_num_seqs=512), poison=True)  # rows of logits for whole prompts
    yield Variant("8 at a time", config(max_num_seqs=8), shuffle=4, poison=True)
    for size in block_sizes:
        yield Variant(f"blocks of {size}", config(block_size=size), poison=True)
    for count in threads:
        yield Variant(f"{count} threads", config(num_threads=count), shuffle=5, poison=True)
    smallest, finest = min(block_sizes), min(chunks)
    yield Variant(
        f"blocks of {smallest}, chunks of {finest}, shuffled",
        config(block_size=smallest, long_prefill_token_threshold=finest),
        shuffle=6,
        poison=True,
    )


def warmed(variant: Variant) -> Variant:
    """The same, twice, with the prefix cache on."""
    config = replace(variant.config, enable_prefix_caching=True)
    return replace(variant, name=f"warm, {variant.name}", config=config, warm=True)


def by_force(variant: Variant, mode: str, seed: int) -> Variant:
    """The same, and every request is preempted at seeded steps, mid-prompt too: by "swap" or by "recompute"."""
    config = replace(variant.config, preemption_mode=mode)
    return replace(variant, name=f"{mode} by force, {variant.name}", config=config, preempt=seed, poison=True)


def make_pressed_requests(num_requests: int, vocab_size: int, max_tokens: int, seed: int) -> list[Request]:
    """Short prompts and long answers, for pressed_variants()."""
    rng = random.Random(seed)
    made = make_requests(num_requests, vocab_size, 1, 1, seed)
    return [
        Request(
            tuple(rng.randrange(vocab_size) for _ in range(rng.randint(5, 9))),
            replace(request.params, max_tokens=max_tokens),
        )
        for request in made
    ]


def pressed_variants(base: EngineConfig, mode: str, requests: Sequence[Request], block_size: int) -> Iterator[Variant]:
    """A pool that holds any one of these requests and hardly more. Each is let in beside the one before it while that
    one is short, and has to go as that one grows: all but the oldest are preempted."""
    longest = max(len(request.prompt) + (request.params.max_tokens or 0) for request in requests)
    num_blocks = -(-longest // block_size) + 1
    config = replace(
        base, preemption_mode=mode, block_size=block_size, num_blocks=num_blocks, max_model_len=num_blocks * block_size
    )
    yield Variant(f"{mode} for want of room", config, poison=True)
    chunked = replace(config, long_prefill_token_threshold=3)
    yield Variant(f"{mode} for want of room, chunks of 3", chunked, poison=True)


def answer(output: RequestOutput) -> Answer:
    """What must not change: token ids, logprob bits, ranks, the reason of the end, a beam's score."""
    of_prompt = output.prompt_logprobs
    if of_prompt is not None and (len(of_prompt) != len(output.prompt_token_ids) or of_prompt[0] is not None):
        raise AssertionError(f"{len(of_prompt)} prompt logprobs for {len(output.prompt_token_ids)} tokens")
    branches = (
        (
            tuple(completion.token_ids),
            _bits(completion.logprobs or ()),
            completion.finish_reason,
            None if completion.score is None else struct.pack("<d", completion.score),
        )
        for completion in output.outputs
    )
    return tuple(branches), _bits(position for position in of_prompt or () if position is not None)


def _bits(logprobs: Iterable[dict[int, Logprob]]) -> Logprobs:
    return tuple(
        tuple((token, struct.pack("<f", entry.logprob), entry.rank) for token, entry in position.items())
        for position in logprobs
    )


def step(engine: LLMEngine, poison: bool) -> list[RequestOutput]:
    """One engine step; before it, the free blocks' memory may be filled with NaN."""
    if poison:
        memory = engine.worker.kv_memory
        memory.fill_blocks(engine.scheduler.free_blocks(), float("nan"))
        memory.fill_host_blocks(engine.scheduler.free_host_blocks(), float("nan"))
    outputs = engine.step()
    engine.scheduler.check_invariants()
    return outputs


class Forcing:
    """Preempts requests before steps drawn at random; each request that has a second token at least once."""

    def __init__(self, seed: int, mode: str) -> None:
        self._random = random.Random(seed)
        self._mode = mode
        self._times: Counter[tuple[int, int]] = Counter()

    def preempt(self, engine: LLMEngine, num_tokens: dict[int, int]) -> None:
        """num_tokens: of the output so far, by the group id of each unfinished request."""
        for group_id, shown in num_tokens.items():
            searches = (
                shown == 0 and len(engine.scheduler.sequences(group_id)) > 1
            )  # which shows nothing before its end
            done = 1 if searches else shown
            # Who is recomputed between any two tokens too often never gets to the second.
            most = 3 if searches else 1 if done else 2
            enough = self._mode == "recompute" and self._times[group_id, done] >= most
            due = done > 0 and engine.scheduler.num_preemptions(group_id) == 0
            if due or (not enough and self._random.random() < 1 / 3):
                engine.scheduler.preempt(group_id, self._mode)
                self._times[group_id, done] += 1


def run(variant: Variant, requests: Sequence[Request]) -> list[Answer]:
    """The answers in the order of `requests`, whatever the order of arrival."""
    return run_counted(variant, requests).answers


def run_counted(variant: Variant, requests: Sequence[Request]) -> Outcome:
    """The same with what it took. AssertionError if a block is lost, or what preemption cost is miscounted. Whose
    blocks moved is counted of requests of one sequence alone, and where no cached block goes to the host."""
    order = list(range(len(requests)))
    if variant.shuffle is not None:
        random.Random(variant.shuffle).shuffle(order)
    engine = LLMEngine(variant.config)
    try:
        # Cached blocks that move between the tiers are copied by the same list as those of requests.
        moves_cached = engine.config.enable_prefix_caching and engine.scheduler.num_host_blocks > 0
        is_counted = not moves_cached and all(request.params.num_branches == 1 for request in requests)
        executor = CountingExecutor(engine) if is_counted else None
        finished = _run_to_the_end(engine, variant, [(i, requests[i]) for i in order])
        outputs = [finished[i] for i in range(len(requests))]
        if variant.warm:
            finished = _run_to_the_end(engine, variant, [(i, requests[i]) for i in order])
            outputs += [finished[i] for i in range(len(requests))]
        for tier, free, total in (
            ("device", engine.scheduler.num_free_blocks, engine.scheduler.num_blocks),
            ("host", engine.scheduler.num_free_host_blocks, engine.scheduler.num_host_blocks),
        ):
            if free != total:
                raise AssertionError(
                    f"{variant.name}: {total - free} of {total} {tier} blocks still held after the last request"
                )
        if executor is not None:
            executor.check_what_was_reported(variant.name)
        check_bytes_between_tiers(engine, variant.name)
        cost = PreemptionCost.reported_by(engine)
    finally:
        engine.close()
    return Outcome(
        [answer(output) for output in outputs],
        [output.metrics.num_preemptions for output in outputs],
        [output.num_cached_tokens for output in outputs],
        cost,
    )


def _run_to_the_end(
    engine: LLMEngine, variant: Variant, pending: list[tuple[int, Request]]
) -> dict[int, RequestOutput]:
    """The finished outputs by request."""
    forcing = None if variant.preempt is None else Forcing(variant.preempt, variant.config.preemption_mode or "")
    group_ids: dict[int, int] = {}  # counted up, as the engine does
    first_group_id = engine._next_group_id
    num_tokens: dict[int, int] = {}  # of the output so far, by group id, of unfinished requests
    finished: dict[int, RequestOutput] = {}
    while pending or engine.has_unfinished_requests():
        room = 1 if variant.stagger or variant.alone else len(pending)
        if variant.alone and engine.has_unfinished_requests():
            room = 0
        for i, request in pending[:room]:
            engine.add_request(str(i), list(request.prompt), request.params)
            group_ids[i] = first_group_id + len(group_ids)
            num_tokens[group_ids[i]] = 0
        del pending[:room]
        if forcing is not None:
            forcing.preempt(engine, num_tokens)
        for output in step(engine, variant.poison):
            i = int(output.request_id)
            num_tokens[group_ids[i]] = max(len(completion.token_ids) for completion in output.outputs)
            if output.finished:
                del num_tokens[group_ids[i]]
                finished[i] = output
    return finished


def not_found_again(variant: Variant, requests: Sequence[Request], outcome: Outcome) -> str | None:
    """Which request did not find, the second time, what its first time left: the full blocks of prompt and answer. For
    a pool that holds all of them."""
    block_size = variant.config.block_size
    for i, request in enumerate(requests):
        length = len(request.prompt)
        num_left = (length + len(outcome.answers[i][0][0][0]) - 1) // block_size * block_size
        wanted = min(num_left, length - 1) if request.params.prompt_logprobs is None else 0
        found = outcome.num_cached_tokens[len(requests) + i]
        if found < wanted:
            return f"request {i}: found {found} tokens of its prompt again, of {wanted} that were there"
    return None


def first_difference(expected: Sequence[Answer], got: Sequence[Answer]) -> str | None:
    """None when equal; else which request, and at which token."""
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        if len(want[0]) != len(have[0]):
            return f"request {i}: {len(have[0])} answers, alone {len(want[0])}"
        for k, (branch, other) in enumerate(zip(want[0], have[0], strict=True)):
            difference = _difference_of_branches(branch, other)
            if difference is not None:
                return f"request {i}{f', answer {k}' if len(want[0]) > 1 else ''}: {difference}"
        if want[1] != have[1]:
            return f"request {i}: other logprobs of the prompt ({len(have[1])} positions) than alone ({len(want[1])})"
    return None


def _difference_of_branches(want: Branch, have: Branch) -> str | None:
    for position, (a, b) in enumerate(zip(want[0], have[0], strict=False)):
        if a != b:
            return f"token {position} is {b}, alone it was {a}"
    for position, (x, y) in enumerate(zip(want[1], have[1], strict=False)):
        if x != y:
            return f"logprobs of token {position} are {y}, alone they were {x}"
    if want[:3] != have[:3]:
        return f"ended {have[2]} after {len(have[0])} tokens, alone {want[2]} after {len(want[0])}"
    if want[3] != have[3]:
        return f"its score is {have[3]!r}, alone it was {want[3]!r}"
    return None
