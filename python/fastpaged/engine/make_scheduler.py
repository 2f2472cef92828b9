"""The scheduler of an engine, as its configuration wants it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fastpaged import _core
from fastpaged.engine.recorder import RecordingScheduler
from fastpaged.engine.recording_file import FORMAT
from fastpaged.kv_events import MAX_KV_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.config import EngineConfig
    from fastpaged.engine.recording_file import RecordingFile
    from fastpaged.worker.worker import Worker


def make_scheduler(config: EngineConfig, worker: Worker, recording: RecordingFile | None = None) -> _core.Scheduler:
    """With the worker's blocks. recording: where all that goes in and out of it is written down."""
    return _type(config, worker, recording)(
        num_blocks=worker.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=worker.max_model_len,
        max_num_rows=config.max_num_rows,
        num_host_blocks=worker.num_host_blocks,
        prefix_caching=config.enable_prefix_caching,
        max_pinned_blocks=max_pinned_blocks(config, worker) or 0,
        max_cache_events=MAX_KV_EVENTS if config.kv_events else 0,
        host_prefix_tier=config.enable_prefix_caching,
        policy=_core.SchedulerPolicy(
            preemption_mode=config.preemption_mode,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            watermark=config.watermark,
            resume_grace_steps=config.resume_grace_steps,
            by_priority=config.scheduling_policy == "priority",
            ageing_steps=config.ageing_steps,
            prefill_share=config.prefill_share,
        ),
    )


def max_pinned_blocks(config: EngineConfig, worker: Worker) -> int | None:
    """None where nothing is cached, and so nothing can be pinned."""
    return int(worker.num_blocks * config.pinned_prefix_budget) if config.enable_prefix_caching else None


def _type(config: EngineConfig, worker: Worker, recording: RecordingFile | None) -> Callable[..., _core.Scheduler]:
    if recording is None:
        return _core.Scheduler
    about = {
        "format": FORMAT,
        "version": _core.__version__,
        "model": config.model,
        "block_bytes": worker.block_bytes,
    }
    return functools.partial(RecordingScheduler, recording, about)
