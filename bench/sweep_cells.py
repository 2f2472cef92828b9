"""Decode steps of N sequences at a context, on an engine that was brought there without computing the prompts.

A step's time depends on how long the contexts are, not on what they hold. So the KV pool is filled with noise once
(memory that was never written is not read from memory), and while prompts are taken in, the model is not run.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastpaged import LLM, SamplingParams
from fastpaged.cli.kv_noise import fill_with_noise
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.step_profile import StepProfile

ATTENTION = "paged_attention"
MAX_STEPS = 32
_MIN_STEPS = 5
_WARM_UP_STEPS = 2
_TOKENS_IN_A_STEP = 8192
_ROOM = 64  # tokens that a sequence may grow by: while others are taken in, warming up, and MAX_STEPS


@dataclass(frozen=True)
class Cell:
    """Medians over decode steps, in milliseconds. overhead_ms: of the step, all but the model and the sampler.
    cpu_ms: of the step, CPU time of all threads, which hardly depends on who else is running."""

    threads: int
    sequences: int
    context: int
    num_steps: int
    step_ms: float
    forward_ms: float
    attention_ms: float
    sample_ms: float
    overhead_ms: float
    cpu_ms: float

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return 1e3 * self.sequences / self.step_ms


class Bench:
    """An engine with its profile, and room in the KV pool for `kv_bytes`."""

    def __init__(
        self, model: str, threads: int, max_num_seqs: int, kv_bytes: int, kv_cache_dtype: str = "auto"
    ) -> None:
        self.threads = threads
        self._llm = LLM(
            model,
            num_threads=threads,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=_TOKENS_IN_A_STEP,
            kv_cache_memory_bytes=kv_bytes,
            kv_cache_dtype=kv_cache_dtype,
            swap_space=0,
            skip_tokenizer_init=True,
            packed_cache=False,  # whose writer would use memory while steps are timed
        )
        self.engine: LLMEngine = self._llm.engine
        self._profile = StepProfile()
        self._profile.attach(self.engine)
        self._next_id = 0
        fill_with_noise(self.engine.worker.kv_memory)

    def close(self) -> None:
        """Frees the engine."""
        self._llm.close()

    def room(self) -> int:
        """Tokens that fit into the KV pool, less what is never given to newcomers."""
        engine = self.engine
        return int(engine.scheduler.num_blocks * engine.config.block_size * (1 - engine.config.watermark))

    def fits(self, sequences: int, context: int) -> bool:
        """Whether so many sequences of this context fit."""
        block = self.engine.config.block_size
        in_pool = sequences * -(-(_prompt_length(context) + _ROOM) // block) * block
        return in_pool <= self.room() and context <= self.engine.worker.max_model_len

    def decode(self, sequences: int, context: int, seconds: float) -> Cell:
        """Steps for about so long, at least a few and at most MAX_STEPS. REQUIRES: fits(sequences, context)."""
        ids = self._take_in(sequences, context)
        try:
            for _ in range(_WARM_UP_STEPS):
                self.engine.step()
            steps: list[dict[str, float]] = []
            end = time.perf_counter() + seconds
            while len(steps) < _MIN_STEPS or (len(steps) < MAX_STEPS and time.perf_counter() < end):
                before, cpu = self._profile.as_dict(), time.process_time()
                self.engine.step()
                cpu_ms = 1e3 * (time.process_time() - cpu)
                steps.append({**_difference(before, self._profile.as_dict()), "cpu_ms": cpu_ms})
        finally:
            for request_id in ids:
                self.engine.abort_request(request_id)
        median = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
        return Cell(self.threads, sequences, context, len(steps), **median)

    def _take_in(self, sequences: int, context: int) -> list[str]:
        vocab_size = self.engine.worker.model_config.vocab_size
        rng = np.random.default_rng(sequences * context)
        params = SamplingParams(temperature=0, max_tokens=_ROOM, ignore_eos=True, detokenize=False)
        ids = [str(self._next_id + index) for index in range(sequences)]
        self._next_id += sequences
        worker: Any = self.engine.worker
        graph, worker.graph = worker.graph, _Idle(worker.graph, sequences, vocab_size)
        try:
            for request_id in ids:
                prompt = rng.integers(vocab_size, size=_prompt_length(context)).tolist()
                self.engine.add_request(request_id, prompt, params, final_only=True)
            while not worker.graph.all_decode:
                self.engine.step()
        finally:
            worker.graph = graph
        return ids


class _Idle:
    """Stands for a graph, and does not run it: all logits are 0.

    all_decode: the last batch had a token of each of the sequences.
    """

    def __init__(self, graph: Any, sequences: int, vocab_size: int) -> None:
        self._graph = graph
        self._sequences = sequences
        self._logits = np.zeros((sequences, vocab_size), np.float32)
        self.output = self._logits[:0]
        self.all_decode = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def run(self, batch: Any) -> None:
        """Looks at the batch, and no more."""
        self.output = self._logits[: len(batch.sample_rows)]
        self.all_decode = len(batch.token_ids) == len(batch.context_lens) == self._sequences


def _prompt_length(context: int) -> int:
    """So that the steps measured are about as long as said, and none is longer than a model may allow."""
    return max(1, context - _ROOM)


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    def milliseconds(of: dict[str, Any]) -> tuple[float, float, float, float]:
        attention = of["ops"].get(ATTENTION, {}).get("seconds", 0.0)
        return of["total_seconds"], of["phases"]["forward"], attention, of["phases"]["sample"]

    step, forward, attention, sample = (
        1e3 * (b - a) for a, b in zip(milliseconds(before), milliseconds(after), strict=True)
    )
    overhead = max(step - forward - sample, 0.0)
    return {
        "step_ms": step,
        "forward_ms": forward,
        "attention_ms": attention,
        "sample_ms": sample,
        "overhead_ms": overhead,
    }
