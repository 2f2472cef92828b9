"""The same requests on a real engine, on a clock that steps take on by what they are said to take."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.recorded import random_params

from fastpaged import _core
from fastpaged.engine.decisions import decisions_of, plan_rows
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.preemption_costs import PreemptionCosts
from fastpaged.sampling_params import SamplingParams

Decisions = tuple[list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """time, abort_time: in nanoseconds from the beginning of the run."""

    prompt: list[int]
    params: SamplingParams
    time: int
    abort_time: int | None
    terms: dict[str, Any] = field(default_factory=dict)


def random_requests(seed: int, num_requests: int, mean_gap: int, policy: str = "fcfs") -> list[Asked]:
    dice = random.Random(seed)
    asked: list[Asked] = []
    time = 0
    for _ in range(num_requests):
        begin = dice.choice(asked).prompt if asked else []
        prompt = begin[: dice.randint(0, len(begin))] + [dice.randint(10, 120) for _ in range(dice.randint(1, 12))]
        time += dice.randint(0, 2 * mean_gap)
        abort_time = time + dice.randint(1, 20 * mean_gap) if dice.random() < 0.1 else None
        # No deadlines: what a request would have answered had it had more time, no recording knows.
        terms = {"priority": dice.choice((0, 0, 1, -1))} if policy == "priority" else {}
        asked.append(Asked(prompt[:30], random_params(dice), time, abort_time, terms))
    return asked


def decisions(plan: _core.SchedulerOutput) -> Decisions:
    return plan_rows(plan), decisions_of(plan)


def run_on_virtual_clock(
    engine: LLMEngine, asked: Sequence[Asked], duration: Callable[[_core.SchedulerOutput], int]
) -> list[Decisions]:
    """What each plan decided. The engine records or not."""
    now = begin = engine.clock()
    if engine._recording is not None:
        now = begin = engine._recording.start
    engine.clock.source = lambda: now
    engine.preemptions.fix_costs(PreemptionCosts(1e-4, 2e-4, 3e-4))
    planned: list[Decisions] = []
    execute = engine._executor.run

    def run(plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        nonlocal now
        planned.append(decisions(plan))
        result = execute(plan)
        now += duration(plan)
        return result

    engine._executor.run = run  # type: ignore[method-assign]
    coming = [(request.time, 0, i) for i, request in enumerate(asked)]
    coming += [(request.abort_time, 1, i) for i, request in enumerate(asked) if request.abort_time is not None]
    coming.sort()
    while coming or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            now = max(now, begin + coming[0][0])
        while coming and begin + coming[0][0] <= now:
            time, what, i = coming.pop(0)
            at, now = now, begin + time  # it is recorded as having come then
            if what == 0:
                engine.add_request(str(i), {"prompt_token_ids": asked[i].prompt}, asked[i].params, **asked[i].terms)
            else:
                engine.abort_request(str(i))
            now = at
        engine.step()
        engine.scheduler.check_invariants()
    return planned
