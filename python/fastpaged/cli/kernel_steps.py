"""Steps of an engine's model, made by hand: of any batch and context, without computing what came before them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastpaged import _core
from fastpaged.cli.kv_noise import fill_with_noise
from fastpaged.cli.step_kind import StepKind
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from fastpaged.cli.step_sizes import StepSizes
    from fastpaged.engine.llm_engine import LLMEngine

_TOKEN = 7  # what every step is said to have sampled
_SAMPLING = "sampling"
_PLANNING = "planning"  # schedule, batch, update


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
            scheduler.update_tokens(plan, [_TOKEN] * plan.num_results)
            plan = scheduler.schedule()
        fill_with_noise(self._worker.kv_memory)
        scheduler.update_tokens(plan, [_TOKEN] * plan.num_results)
        kind = StepKind()
        for _ in range(self._sizes.num_steps):
            self._step(scheduler, builder, kind)
        return kind

    def prefill(self, num_tokens: int) -> StepKind:
        """The first tokens of a prompt, as many as these."""
        scheduler = self._scheduler()
        builder = _core.BatchBuilder(scheduler)
        fill_with_noise(self._worker.kv_memory)
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
        scheduler.update_tokens(plan, [_TOKEN] * plan.num_results)
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
