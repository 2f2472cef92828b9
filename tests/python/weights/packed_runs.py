"""Short runs of a tiny model, with packed weights kept or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forced import last_logits

from fastpaged.config import EngineConfig
from fastpaged.worker.worker import Worker

PROMPT = [5, 250, 17, 3, 3, 99, 120, 7]


def run(model: Path, **changes: Any) -> tuple[bytes, bool]:
    """Logits, and whether every weight came from the cache."""
    values: dict[str, Any] = {"model": str(model), "isa": "scalar", "num_threads": 1, "num_blocks": 8}
    config = EngineConfig(**{**values, "max_model_len": 64, **changes})
    worker = Worker(config)
    logits = last_logits(worker, config, [PROMPT]).tobytes()
    was_cached = worker._cache_writer is None
    worker.close()
    return logits, was_cached


def plain(model: Path, **changes: Any) -> bytes:
    return run(model, packed_cache=False, **changes)[0]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def the_file(folder: Path) -> Path:
    (name,) = names(folder)
    return folder / name
