"""Recordings of toy engines under pressure, for tests."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.fakes import toy_engine

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.recorder import RecordingScheduler
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams


class FakeClock:
    """Nanoseconds that go on by one tick each time they are read."""

    def __init__(self, tick: int = 1000) -> None:
        self.now = time.monotonic_ns()  # which the engine's clock has begun with
        self.tick = tick

    def __call__(self) -> int:
        self.now += self.tick
        return self.now


def pressed_engine(path: Path, **changes: Any) -> LLMEngine:
    """Room for a few requests at a time."""
    settings: dict[str, Any] = {"num_blocks": 16, "num_host_blocks": 24, "block_size": 4, "max_num_seqs": 8}
    return toy_engine(record=str(path), **(settings | changes))


def random_params(dice: random.Random) -> SamplingParams:
    kind = dice.choice(("greedy", "drawn", "samples", "beams", "stops", "scored"))
    length = dice.randint(1, 24)
    match kind:
        case "samples":
            return SamplingParams(n=dice.randint(2, 3), max_tokens=length, seed=dice.randrange(100))
        case "beams":
            return SamplingParams(
                use_beam_search=True, n=2, best_of=dice.randint(2, 3), temperature=0, max_tokens=min(length, 8)
            )
        case "stops":
            return SamplingParams(temperature=0, max_tokens=length, stop=["A", "b", "7", "("], ignore_eos=True)
        case "scored":
            return SamplingParams(temperature=0, max_tokens=length, prompt_logprobs=1)
        case "drawn":
            return SamplingParams(max_tokens=length, seed=dice.randrange(100), ignore_eos=True)
    return SamplingParams(temperature=0, max_tokens=length, ignore_eos=dice.random() < 0.5)


def check(engine: LLMEngine) -> None:
    engine.scheduler.check_invariants()
    assert isinstance(engine.scheduler, RecordingScheduler)
    engine.scheduler._paths.check_invariants()


def steps_of(engine: LLMEngine) -> Iterator[RequestOutput]:
    """All outputs until nothing is left to do."""
    while engine.has_unfinished_requests():
        yield from engine.step()
        check(engine)


def random_terms(dice: random.Random, policy: str, unit: float) -> dict[str, Any]:
    """Priority and times of a request, mostly none. unit: seconds that some of them are too short for."""
    terms: dict[str, Any] = {}
    if policy == "priority":
        terms["priority"] = dice.choice((0, 0, 1, -1))
    if dice.random() < 0.15:
        terms["deadline"] = unit * dice.randint(1, 20)
    if dice.random() < 0.15:
        terms["queue_timeout"] = unit * dice.randint(1, 10)
    return terms


def drive(engine: LLMEngine, seed: int, num_requests: int = 40) -> None:
    """Requests of all kinds, of which many begin like earlier ones or go on from their answers; some are aborted."""
    dice = random.Random(seed)
    texts: list[list[int]] = [[]]
    here: list[str] = []
    num_added = 0
    while num_added < num_requests or engine.has_unfinished_requests():
        while num_added < num_requests and dice.random() < 0.5:
            begin = dice.choice(texts)
            prompt = (begin[: dice.randint(0, len(begin))] + [dice.randint(10, 120) for _ in range(9)])[:30]
            prompt = prompt[: dice.randint(max(1, len(prompt) - 8), len(prompt))]
            salt = {"cache_salt": "mine"} if dice.random() < 0.1 else {}
            name = str(num_added)
            num_added += 1
            terms = random_terms(dice, engine.config.scheduling_policy, 1e-5)
            engine.add_request(name, {"prompt_token_ids": prompt, **salt}, random_params(dice), **terms)
            texts.append(prompt)
            here.append(name)
        if here and dice.random() < 0.03:
            engine.abort_request(dice.choice(here))
        if dice.random() < 0.02:
            engine.reset_prefix_cache()
        for output in engine.step():
            if output.finished:
                answer = [token for token in output.outputs[0].token_ids if token > 4]
                texts.append([*(output.prompt_token_ids or ()), *answer])
        check(engine)
