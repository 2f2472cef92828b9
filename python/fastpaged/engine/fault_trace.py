"""FaultTraces: what is known of a step that failed, in a file for whoever looks into it."""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged._core import __version__
from fastpaged.engine.decisions import decisions_of, plan_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.engine.llm_engine import LLMEngine

MOST = 16  # files of one process: a fault that comes back does not fill the disk


class FaultTraces:
    """Of one engine. Nothing of prompts or answers is in them but how long they are."""

    def __init__(self, folder: str | None) -> None:
        """folder: made when it is needed; None: one of this process in the folder for temporary files."""
        self._folder = Path(folder or Path(tempfile.gettempdir()) / f"fastpaged-faults-{os.getpid()}")
        self._numbers = itertools.count()

    def write(self, engine: LLMEngine, error: BaseException, blamed: Sequence[str]) -> Path | None:
        """The file; None where there are enough, or it could not be written, which is no reason to fail once more."""
        number = next(self._numbers)
        if number >= MOST:
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"fault-{os.getpid()}-{time.time_ns()}-{number}.json"
            path.write_text(json.dumps(_trace(engine, error, blamed), indent=1, default=repr), encoding="utf-8")
        except Exception:
            logging.getLogger(__name__).warning("the trace of a fault could not be written", exc_info=True)
            return None
        return path


def _trace(engine: LLMEngine, error: BaseException, blamed: Sequence[str]) -> dict[str, Any]:
    plan = engine.plan_under_way
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "version": __version__,
        "error": repr(error),
        "traceback": traceback.format_exception(error),
        "failed_requests": list(blamed),
        "model": engine.config.model,
        "isa": engine.worker.device.isa,
        "config": {
            name: getattr(engine.config, name)
            for name in ("dtype", "kv_cache_dtype", "block_size", "max_num_seqs", "max_num_batched_tokens",
                         "preemption_mode", "scheduling_policy", "async_scheduling", "enable_prefix_caching")
        },
        "plan": None if plan is None else {"rows": plan_rows(plan), **decisions_of(plan)},
        "scheduler": {
            name: getattr(engine.scheduler, name)
            for name in ("num_blocks", "num_free_blocks", "num_host_blocks", "num_free_host_blocks", "num_running",
                         "num_waiting", "num_swapped", "num_quarantined_blocks")
        },
    }  # fmt: skip
