"""Replaying a workload on an engine, all requests at once, and what that took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastpaged.cli.workload import WorkloadRequest
    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.outputs import RequestMetrics

_COUNTERS = (
    "num_preemptions",
    "num_groups_swapped_out",
    "num_groups_swapped_in",
    "num_blocks_swapped_out",
    "num_blocks_swapped_in",
    "num_blocks_copied_on_write",
    "num_tokens_recomputed",
)


@dataclass
class Replay:
    """One run of a workload. Times in seconds; num_* of the scheduler are this run's own."""

    elapsed_time: float = 0.0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_failed: int = 0
    ttfts: list[float] = field(default_factory=list)  # from the request's arrival, by request
    tpots: list[float] = field(default_factory=list)  # between tokens, mean of a request that has two or more
    num_steps: int = 0
    max_num_running: int = 0
    max_blocks_in_use: int = 0
    mean_num_running: float = 0.0
    mean_blocks_in_use: float = 0.0
    scheduler: dict[str, int] = field(default_factory=dict)


def replay(
    engine: LLMEngine, workload: Sequence[WorkloadRequest], progress: Callable[[int, int], None] | None = None
) -> Replay:
    """Greedy, end-of-sequence ignored, no text made. progress: called with (done, total) when a request has ended.

    Raises InvalidRequestError for a request that does not fit the model; the engine is then as it was before.
    """
    params = [
        SamplingParams(temperature=0, max_tokens=r.num_output_tokens, ignore_eos=True, detokenize=False)
        for r in workload
    ]
    requests = [
        engine.prepare(f"replay-{index}", request.prompt, request_params)
        for index, (request, request_params) in enumerate(zip(workload, params, strict=True))
    ]
    run = Replay(num_input_tokens=sum(len(request.prompt) for request in workload))
    before = _counters(engine)
    begin = time.perf_counter()
    for request in requests:
        engine.enqueue(request, final_only=True)
    num_done = running = blocks = 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        scheduler = engine.scheduler
        in_use = scheduler.num_blocks - scheduler.num_free_blocks
        num_running = scheduler.num_running + len(outputs)  # those that ended ran in this step too
        run.num_steps, running, blocks = run.num_steps + 1, running + num_running, blocks + in_use
        run.max_num_running = max(run.max_num_running, num_running)
        run.max_blocks_in_use = max(run.max_blocks_in_use, in_use)
        for output in outputs:
            num_done += 1
            run.num_failed += output.outputs[0].finish_reason == "error"
            _add_times(run, output.metrics)
            if progress is not None:
                progress(num_done, len(requests))
    run.elapsed_time = time.perf_counter() - begin
    run.mean_num_running, run.mean_blocks_in_use = running / run.num_steps, blocks / run.num_steps
    run.scheduler = {name: count - before[name] for name, count in _counters(engine).items()}
    return run


def _add_times(run: Replay, metrics: RequestMetrics) -> None:
    num_tokens = metrics.num_generation_tokens
    run.num_output_tokens += num_tokens
    if metrics.first_token_latency is not None:
        run.ttfts.append(metrics.first_token_latency)
    if num_tokens > 1 and metrics.first_token_ts is not None and metrics.last_token_ts is not None:
        run.tpots.append((metrics.last_token_ts - metrics.first_token_ts) / (num_tokens - 1))


def _counters(engine: LLMEngine) -> dict[str, int]:
    stats = engine.scheduler.stats
    return {name: getattr(stats, name) for name in _COUNTERS}
