"""Steps of an engine's model, made by hand: of any batch and context, without computing what came before them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastpaged import _core
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from fastpaged.engine.llm_engine import LLMEngine

_TOKEN = 7  # what every step is said to have sampled
_SAMPLING = "sampling"
_PLANNING = "planning"  # schedule, batch, update


@dataclass
class StepKind:
    """Steps that are alike. times: of each op (OpTime.label), and of what is none, the seconds in each step; costs: of
    each op in one step: (calls, memory bytes, activation bytes, flops)."""

    totals: list[float] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)

    def held_against(self, limits: _core.MachineLimits) -> dict[str, Any]:
        """{"seconds", "limit_seconds" of all ops, "ops": {label: {"seconds", "share_of_step", "limit_seconds"}}}, each
        the median over the steps. What has no limit (planning) has None."""
        total = statistics.median(self.totals)
        ops: dict[str, dict[str, float | int | None]] = {}
        for label, seconds in self.times.items():
            calls, memory, activations, flops = self.costs.get(label, (0, 0, 0, 0))
            limit = None
            if calls:
                limit = calls * limits.seconds(
                    memory_bytes=memory // calls, activation_bytes=activations // calls, flops=flops // calls
                )
            median = statistics.median(seconds)
            ops[label] = {
                "calls": calls,
                "seconds": median,
                "share_of_step": median / total,
                "limit_seconds": limit,
                "memory_bytes": memory,
                "activation_bytes": activations,
                "flops": flops,
            }
        limit_seconds = sum(op["limit_seconds"] or 0.0 for op in ops.values())
        return {"seconds": total, "limit_seconds": limit_seconds, "num_steps": len(self.totals), "ops": ops}


@dataclass(frozen=True)
class StepSizes:
    """context: tokens of each sequence in a decode step, but for those that it gets in the steps, and while the prompts
    of the others are read."""

    batches: tuple[int, ...]
    context: int
    prefill: int
    num_steps: int

    @property
    def max_tokens(self) -> int:
        """Most tokens that a sequence gets. As the engine's budget of tokens is at least twice a batch, prompts are
        read in twice as many steps as there would be tokens for at the most."""
        num_prompt_steps = 2 * max(self.batches) * self.context // self.least_budget + 2
        return num_prompt_steps + self.num_steps + 2

    @property
    def least_budget(self) -> int:
        """Tokens in a step."""
        return max(self.prefill, 2 * max(self.batches), 2048)

    @property
    def num_tokens(self) -> int:
        """Most tokens of a sequence."""
        return max(self.context + self.max_tokens, self.prefill + 1)

    def num_blocks(self, block_size: int) -> int:
        """Of the KV pool: for the largest step, and one to spare for the watermark of every hundred."""
        decode = max(self.batches) * -(-(self.context + self.max_tokens) // block_size)
        return max(decode, -(-(self.prefill + 1) // block_size)) * 102 // 100 + 2


class KernelSteps:
    """Plans as the engine does, on a scheduler of its own, and has the engine's worker compute a step now and then.

    Nobody else uses the engine meanwhile. Its KV pool holds numbers from the start, for memory that nobody has written
    is read out of one page of zeros. Weights and K and V are in no cache but as far as the step before has left them.
    """

    def __init__(self, engine: LLMEngine, sizes: StepSizes) -> None:
        """Raises InvalidRequestError naming what the engine has too little of for steps of such sizes."""
        self._engine = engine
        self._worker = engine.worker
        self._sizes = sizes
        config = engine.config
        for name, least, value in (
            ("max_model_len", sizes.num_tokens, engine.worker.max_model_len),
            ("max_num_seqs", max(sizes.batches), config.max_num_seqs),
            ("max_num_batched_tokens", sizes.least_budget, config.max_num_batched_tokens),
            ("num_blocks", sizes.num_blocks(config.block_size), engine.worker.num_blocks),
        ):
            if value < least:
                raise InvalidRequestError(f"{name} must be at least {least} for such steps, got {value}")

    def decode(self, batch: int) -> StepKind:
        """A token of each sequence in a step."""
        scheduler = self._scheduler()
        for group in range(batch):
            self._add(scheduler, group, self._sizes.context, self._sizes.max_tokens)
        builder = _core.BatchBuilder(scheduler)
        plan = scheduler.schedule()
        while plan.num_samples < batch or plan.num_tokens > batch:  # until all prompts are in the cache, they say
            scheduler.update_tokens(plan, [_TOKEN] * plan.num_rows)
            plan = scheduler.schedule()
        self._fill_cache()
        scheduler.update_tokens(plan, [_TOKEN] * plan.num_rows)
        kind = StepKind()
        for _ in range(self._sizes.num_steps):
            self._step(scheduler, builder, kind)
        return kind

    def prefill(self, num_tokens: int) -> StepKind:
        """The first tokens of a prompt, as many as these."""
        scheduler = self._scheduler()
        builder = _core.BatchBuilder(scheduler)
        self._fill_cache()
        kind = StepKind()
        for group in range(self._sizes.num_steps):
            self._add(scheduler, group, num_tokens, 1)
            self._step(scheduler, builder, kind)
        return kind

    def _scheduler(self) -> _core.Scheduler:
        config = self._engine.config
        return _core.Scheduler(
            num_blocks=self._worker.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self._worker.max_model_len,
            max_num_rows=config.max_num_rows,
        )

    def _add(self, scheduler: _core.Scheduler, group: int, num_tokens: int, max_tokens: int) -> None:
        vocab_size = self._worker.model_config.vocab_size
        prompt = [(group * 31 + position * 7 + 11) % vocab_size for position in range(num_tokens)]
        greedy = _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
        scheduler.add(group, prompt, greedy, max_tokens, ())

    def _fill_cache(self) -> None:
        """Every block holds the same numbers, of ordinary size."""
        array = self._worker.kv_memory.array
        numbers = np.random.default_rng(0).standard_normal(array.shape[1:], np.float32)
        array[:] = numbers if array.dtype == np.float32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)

    def _step(self, scheduler: _core.Scheduler, builder: _core.BatchBuilder, kind: StepKind) -> None:
        graph, clock = self._worker.graph, time.perf_counter
        graph.time_ops()
        begin = clock()
        plan = scheduler.schedule()
        batch = builder.build(plan)
        planned = clock()
        graph.run(batch)
        computed = clock()
        self._worker.sample(batch)
        sampled = clock()
        scheduler.update_tokens(plan, [_TOKEN] * plan.num_rows)
        end = clock()
        kind.totals.append(end - begin)
        for times in graph.op_times:
            kind.times.setdefault(times.label, []).append(times.seconds)
            memory = times.weight_bytes + times.kv_bytes
            kind.costs[times.label] = (times.calls, memory, times.activation_bytes, times.flops)
        logits_bytes = plan.num_rows * self._worker.model_config.vocab_size * 4
        kind.times.setdefault(_SAMPLING, []).append(sampled - computed)
        kind.costs[_SAMPLING] = (1, 0, logits_bytes, 0)  # one pass over them
        kind.times.setdefault(_PLANNING, []).append(planned - begin + end - sampled)
