"""Replaying a workload on an engine, all requests at once, and what that took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastpaged import _core
    from fastpaged.cli.workload import WorkloadRequest
    from fastpaged.engine.admission import EngineRequest
    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.outputs import RequestMetrics, RequestOutput

_COUNTERS = (
    "num_preemptions",
    "num_groups_swapped_out",
    "num_groups_swapped_in",
    "num_blocks_swapped_out",
    "num_blocks_swapped_in",
    "num_blocks_copied_on_write",
    "num_tokens_recomputed",
    "num_prefix_tokens_looked_up",
    "num_prefix_tokens_found",
    "num_partial_prefix_blocks",
    "num_cached_blocks_evicted",
)


@dataclass
class Replay:
    """One run of a workload. Times in seconds; the scheduler's counts are this run's own.

    num_cut: requests that ended before they had all the tokens they were to have, because the KV pool was full.
    """

    elapsed_time: float = 0.0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_failed: int = 0
    num_cut: int = 0
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
    """Greedy, end-of-sequence ignored, no text made; with an empty prefix cache to begin with, so that no run is served
    by an earlier one. progress: called with (done, total) when a request has ended.

    Raises InvalidRequestError naming the request that does not fit the model; the engine is then as it was before.
    """
    requests = [_prepared(engine, index, request) for index, request in enumerate(workload)]
    run = Replay(num_input_tokens=sum(len(request.prompt) for request in workload))
    engine.reset_prefix_cache()
    before = _counters(engine)
    num_done = 0
    engine.on_planned = lambda: _note_step(run, engine.scheduler)
    begin = time.perf_counter()
    try:
        for request in requests:
            engine.enqueue(request, final_only=True)
        while engine.has_unfinished_requests():
            for output in engine.step():
                num_done += 1
                _note_end(run, output, workload[int(output.request_id)].num_output_tokens)
                if progress is not None:
                    progress(num_done, len(requests))
    finally:
        engine.on_planned = None
    run.elapsed_time = time.perf_counter() - begin
    run.mean_num_running /= run.num_steps
    run.mean_blocks_in_use /= run.num_steps
    run.scheduler = {name: count - before[name] for name, count in _counters(engine).items()}
    return run


def _prepared(engine: LLMEngine, index: int, request: WorkloadRequest) -> EngineRequest:
    try:
        params = SamplingParams(temperature=0, max_tokens=request.num_output_tokens, ignore_eos=True, detokenize=False)
        prepared = engine.prepare(str(index), request.prompt, params)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"request {index}: {error}") from None
    if prepared.max_tokens < request.num_output_tokens:
        raise InvalidRequestError(
            f"request {index}: prompt and out must be at most {engine.worker.max_model_len} tokens, max_model_len, got "
            f"{len(request.prompt)} and {request.num_output_tokens}"
        )
    return prepared


def _note_step(run: Replay, scheduler: _core.Scheduler) -> None:
    """With a step's blocks reserved and none of them given back yet. Means are sums until the end."""
    in_use = scheduler.num_blocks - scheduler.num_free_blocks
    run.num_steps += 1
    run.mean_num_running += scheduler.num_running
    run.mean_blocks_in_use += in_use
    run.max_num_running = max(run.max_num_running, scheduler.num_running)
    run.max_blocks_in_use = max(run.max_blocks_in_use, in_use)


def _note_end(run: Replay, output: RequestOutput, num_wanted: int) -> None:
    run.num_failed += output.outputs[0].finish_reason == "error"
    run.num_cut += output.outputs[0].finish_reason == "length" and output.metrics.num_generation_tokens < num_wanted
    _add_times(run, output.metrics)


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
