"""The limits of a machine out of what `fastpaged bench machine --json` wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastpaged import _core
from fastpaged.cli.machine_limits import own_cache_bytes
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path


def limits_of_file(path: Path, device: _core.CpuDevice, dtype: str) -> _core.MachineLimits:
    """For ops on the threads of `device` in this dtype. Raises InvalidRequestError naming what the file lacks."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rates"]
        rows = [row for row in rows if row["threads"] == device.num_threads]
        shared, own = _read(rows, "shared cache"), _read(rows, "own cache")
        products = {row["isa"]: row["rate"] for row in rows if _is_product(row, dtype)}
        flop_rate = products.get(device.isa) or max(products.values())
        memory = _read(rows, "memory")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"--machine must be a file of `fastpaged bench machine --json` with rates of {device.num_threads} threads, "
            f"got {path} ({error})"
        ) from None
    return _core.MachineLimits(
        memory_rate=memory,
        cache_rate=own,
        shared_cache_rate=min(shared, own),
        cache_bytes=own_cache_bytes() * device.num_threads,
        flop_rate=flop_rate,
    )


def _read(rows: list[dict[str, Any]], place: str) -> float:
    """ValueError: there is none."""
    return float(max(row["rate"] for row in rows if row["what"] == "read" and row["from"] == place))


def _is_product(row: dict[str, Any], dtype: str) -> bool:
    return bool(row["what"] == "multiply" and row["from"] == "own cache" and row["dtype"] == dtype)
