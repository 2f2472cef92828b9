"""A machine's limits on one line."""

from __future__ import annotations

from typing import Any


def limits_line(limits: dict[str, Any]) -> str:
    """limits: of machine_limits.limits_as_dict()."""
    return (
        f"{limits['memory_rate'] / 1e9:.1f} GB/s from memory, {limits['cache_rate'] / 1e9:.0f} and "
        f"{limits['shared_cache_rate'] / 1e9:.0f} GB/s from caches, {limits['flop_rate'] / 1e9:.0f} GFLOP/s"
    )
