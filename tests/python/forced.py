"""Logits of given token sequences through a worker and a scheduler, position by position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.worker.worker import Worker


def greedy() -> _core.SamplingParams:
    return _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)


def scheduler_of(worker: Worker, config: EngineConfig) -> _core.Scheduler:
    return _core.Scheduler(
        num_blocks=worker.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=worker.max_model_len,
        num_host_blocks=worker.num_host_blocks,
        policy=_core.SchedulerPolicy(long_prefill_token_threshold=config.long_prefill_token_threshold),
    )


def last_logits(worker: Worker, config: EngineConfig, prompts: list[list[int]]) -> npt.NDArray[np.float32]:
    """[prompts, vocab]: the logits after each prompt's last token; all prompts are submitted together."""
    scheduler = scheduler_of(worker, config)
    builder = _core.BatchBuilder(scheduler)
    for i, prompt in enumerate(prompts):
        scheduler.add(i, prompt, greedy(), 1, [])
    rows: dict[int, npt.NDArray[np.float32]] = {}
    while scheduler.has_unfinished():
        worker.kv_memory.fill_blocks(scheduler.free_blocks(), float("nan"))
        plan = scheduler.schedule()
        result = worker.execute(builder.build(plan))
        for event in scheduler.update(plan, result):
            if event.sample_row is not None:
                rows[event.group_id] = worker.logits[event.sample_row].copy()
    return np.stack([rows[i] for i in range(len(prompts))])


def prefix_logits(worker: Worker, config: EngineConfig, prompt: list[int]) -> npt.NDArray[np.float32]:
    """[tokens, vocab]: the logits at every position of the prompt, as those of every prefix."""
    return last_logits(worker, config, [prompt[: end + 1] for end in range(len(prompt))])
