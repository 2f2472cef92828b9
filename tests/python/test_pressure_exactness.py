"""Promise 1 under pressure: preempted by cost or for a priority, kept over windows, aged, beside requests whose time is
up: the same bits as alone, on every op table."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from engine.fake_clock import assert_nothing_is_held, on_fake_clock
from exactness import (
    Answer,
    Request,
    Variant,
    answer,
    first_difference,
    make_forked_requests,
    make_pressed_requests,
    run,
    step,
)
from isas import EVERY_ISA
from tiny_model import write_tiny_llama

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.preemption_costs import PreemptionCosts
from fastpaged.sampling_params import SamplingParams


@dataclass(frozen=True)
class Pressure:
    """A way to run the requests: what the policy is, and what comes between."""

    name: str
    policy: dict[str, object]
    fixed_costs: bool = True  # drawn anew at every step; else as measured
    num_doomed: int = 0  # requests between the others, whose time will be up
    preempts: bool = True  # for certain


PRESSURES = (
    Pressure("by cost", {"resume_grace_steps": 0}),
    Pressure("by cost, as measured", {}, fixed_costs=False),
    Pressure("by cost, kept over a window", {"resume_grace_steps": 6}),
    Pressure("by priority", {"scheduling_policy": "priority", "ageing_steps": 0}, num_doomed=4),
    Pressure("by priority, ageing soon", {"scheduling_policy": "priority", "ageing_steps": 4}, num_doomed=4),
    Pressure("beside requests whose time is up", {"prefill_share": 3}, num_doomed=8, preempts=False),
    Pressure(
        "all at once", {"scheduling_policy": "priority", "prefill_share": 2, "async_scheduling": True}, num_doomed=8
    ),
)


def config_of(model: Path, isa: str, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "model": str(model), "isa": isa, "max_model_len": 128, "block_size": 4, "num_blocks": 26, "max_num_seqs": 8,
        "max_num_batched_tokens": 32, "num_threads": 2, "watermark": 0.0, "swap_space": 20 * 4 * 256 / 2**30,
    }  # fmt: skip
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), seed=7)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Single ones, samples and beams: the largest needs most of the pool."""
    single = make_pressed_requests(8, vocab_size=256, max_tokens=16, seed=3)
    forked = [
        replace(request, prompt=request.prompt[:20])
        for request in make_forked_requests(4, vocab_size=256, max_prompt=20, max_tokens=9, seed=5)
    ]
    return [*single[:4], *forked, *single[4:]]


@pytest.fixture(scope="module", params=EVERY_ISA)
def alone(request: pytest.FixtureRequest, model: Path, requests: list[Request]) -> tuple[str, list[Answer]]:
    isa: str = request.param
    return isa, run(Variant("alone", config_of(model, isa, num_blocks=200), alone=True), requests)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("pressure", PRESSURES, ids=lambda pressure: pressure.name)
def test_answers_do_not_depend_on_pressure(
    pressure: Pressure, caching: bool, alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    engine = LLMEngine(config_of(model, isa, enable_prefix_caching=caching, **pressure.policy))
    try:
        answers, num_expired = run_under(engine, pressure, requests)
        difference = first_difference(expected, answers)
        assert difference is None, f"{isa}, {pressure.name}: {difference}"
        assert num_expired == pressure.num_doomed
        assert engine.preemptions.totals.num_preemptions > 0 or not pressure.preempts
        engine.reset_prefix_cache()
        assert_nothing_is_held(engine)
    finally:
        engine.close()


def run_under(engine: LLMEngine, pressure: Pressure, requests: list[Request]) -> tuple[list[Answer], int]:
    """The answers in the order of the requests, and how many of those between them ended by time."""
    rng = random.Random(pressure.name)
    clock = on_fake_clock(engine) if pressure.fixed_costs else None
    by_priority = engine.config.scheduling_policy == "priority"
    to_come: list[tuple[str, Request, float | None]] = [(str(i), request, None) for i, request in enumerate(requests)]
    for i in range(pressure.num_doomed):
        params = SamplingParams(temperature=1.0, seed=i, max_tokens=90, ignore_eos=True, n=1 + i % 3)
        doomed = (f"doomed {i}", Request((9, 8, 7, i), params), rng.randint(3, 20))
        to_come.insert(rng.randrange(len(to_come)), doomed)
    answers: dict[str, Answer] = {}
    num_expired = 0
    while to_come or engine.has_unfinished_requests():
        for _ in range(min(len(to_come), rng.randint(0, 3))):
            name, request, deadline = to_come.pop(0)
            priority = rng.randint(-1, 1) if by_priority else 0
            engine.add_request(name, list(request.prompt), request.params, priority=priority, deadline=deadline)
        if clock is not None:
            clock.pass_seconds(1)
            swap_is_cheap = rng.random() < 0.5
            engine.preemptions.fix_costs(
                PreemptionCosts(1.0, 0.1, 0.1) if swap_is_cheap else PreemptionCosts(0.1, 1.0, 1.0)
            )
        for output in step(engine, poison=not engine.config.async_scheduling):
            if output.finished and output.request_id.startswith("doomed"):
                num_expired += output.outputs[0].stop_reason == "deadline"
            elif output.finished:
                answers[output.request_id] = answer(output)
    return [answers[str(i)] for i in range(len(requests))], num_expired
