"""StepKind: what steps of one kind took, and what the machine would have allowed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastpaged import _core


@dataclass
class StepKind:
    """Steps that are alike. times: of each op (OpTime.label), and of what is none, the seconds in each step; costs: of
    each op in the last step: (calls, memory bytes, activation bytes, flops). The steps differ in no more than the
    tokens by which contexts have grown."""

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
