"""The equality matrix: one set of requests, many ways to run it, one answer.

Shared by tests/python/test_exactness.py (a 2-layer model, every op table) and tests/exact/run_exact.py (SmolLM2).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams

NAN_BITS = 0x7FC0  # a quiet NaN in bfloat16


@dataclass(frozen=True)
class Request:
    """A prompt as token ids, and how to sample from it."""

    prompt: tuple[int, ...]
    params: SamplingParams


# Token ids, and every logprob (sampled and alternatives) as its float32 bits: 0.0 and -0.0 differ, NaN equals NaN.
Answer = tuple[tuple[int, ...], tuple[tuple[tuple[int, bytes, int], ...], ...], str | None]


@dataclass(frozen=True)
class Variant:
    """One way to run the requests."""

    name: str
    config: EngineConfig
    shuffle: int | None = None  # seed of the order of arrival
    stagger: bool = False  # requests arrive while others are running
    alone: bool = False  # one at a time
    poison: bool = False  # every free block full of NaN before every step


def make_requests(num_requests: int, vocab_size: int, max_prompt: int, max_tokens: int, seed: int) -> list[Request]:
    """Greedy and seeded ones in turn, each filter in use, prompts from one token to max_prompt."""
    rng = random.Random(seed)
    requests = []
    for i in range(num_requests):
        prompt = tuple(
            rng.randrange(vocab_size) for _ in range(rng.choice((1, 2, 15, 16, 17, rng.randint(1, max_prompt))))
        )
        params = SamplingParams(
            max_tokens=rng.randint(max(1, max_tokens // 2), max_tokens), ignore_eos=True, logprobs=i % 4
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


def answer(output: RequestOutput) -> Answer:
    """What must not change: token ids, logprob bits, ranks, the reason of the end."""
    completion = output.outputs[0]
    logprobs = tuple(
        tuple((token, struct.pack("<f", entry.logprob), entry.rank) for token, entry in position.items())
        for position in completion.logprobs or ()
    )
    return tuple(completion.token_ids), logprobs, completion.finish_reason


def step(engine: LLMEngine, poison: bool) -> list[RequestOutput]:
    """One engine step; before it, the free blocks' memory may be filled with NaN."""
    if poison:
        engine.worker.kv_memory.fill_blocks(engine.scheduler.free_blocks(), NAN_BITS)
    outputs = engine.step()
    engine.scheduler.check_invariants()
    return outputs


def run(variant: Variant, requests: Sequence[Request]) -> list[Answer]:
    """The answers in the order of `requests`, whatever the order of arrival."""
    order = list(range(len(requests)))
    if variant.shuffle is not None:
        random.Random(variant.shuffle).shuffle(order)
    answers: dict[int, Answer] = {}
    engine = LLMEngine(variant.config)
    try:
        pending = [(i, requests[i]) for i in order]
        while pending or engine.has_unfinished_requests():
            room = 1 if variant.stagger or variant.alone else len(pending)
            if variant.alone and engine.has_unfinished_requests():
                room = 0
            for i, request in pending[:room]:
                engine.add_request(str(i), list(request.prompt), request.params)
            del pending[:room]
            for output in step(engine, variant.poison):
                if output.finished:
                    answers[int(output.request_id)] = answer(output)
        free, total = engine.scheduler.num_free_blocks, engine.scheduler.num_blocks
        if free != total:
            raise AssertionError(f"{variant.name}: {total - free} of {total} blocks still held after the last request")
    finally:
        engine.close()
    return [answers[i] for i in range(len(requests))]


def first_difference(expected: Sequence[Answer], got: Sequence[Answer]) -> str | None:
    """None when equal; else which request, and at which output token."""
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        if want == have:
            continue
        for position, (a, b) in enumerate(zip(want[0], have[0], strict=False)):
            if a != b:
                return f"request {i}: token {position} is {b}, alone it was {a}"
        for position, (x, y) in enumerate(zip(want[1], have[1], strict=False)):
            if x != y:
                return f"request {i}: logprobs of token {position} are {y}, alone they were {x}"
        return f"request {i}: ended {have[2]} after {len(have[0])} tokens, alone {want[2]} after {len(want[0])}"
    return None
