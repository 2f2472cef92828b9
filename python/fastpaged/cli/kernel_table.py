"""What `fastpaged bench kernels` looks like on a terminal."""

from __future__ import annotations

from typing import Any

# An op that takes more than this share of a step and reaches less than that share of its limit is marked.
MARKED_ABOVE = 0.05
MARKED_BELOW = 0.60
# Under a table with a share that is marked so.
ABOVE_LIMIT = "? above the limit: it was in a cache, or the machine was slower when it was measured than in the run"
_WIDTH = 18  # of a column
_RATES = {
    "memory_rate": "memory, GB/s",
    "cache_rate": "threads' caches, GB/s",
    "shared_cache_rate": "shared cache, GB/s",
    "flop_rate": "matrix work, GFLOP/s",
}


def kernel_table(figures: dict[str, Any]) -> str:
    """figures: of bench_kernels. A row an op, the slowest first; for each kind of step how much of its limit it reaches
    and its share of the step."""
    steps: dict[str, dict[str, Any]] = figures["steps"]
    labels = sorted({label for step in steps.values() for label in step["ops"]}, key=lambda op: -_most(steps, op))
    width = max(len(label) for label in [*labels, "limits, the better of before and after"]) + 2
    kept = "" if figures["kv_cache_dtype"] == figures["dtype"] else f", KV in {figures['kv_cache_dtype']}"
    setup = (
        f"{figures['isa']}, {figures['dtype']}{kept}, {figures['num_threads']} threads, context {figures['context']}"
    )
    lines = [
        f"{figures['model_id']}: {setup}",
        "",
        "limits, the better of before and after".ljust(width) + "".join(name.rjust(_WIDTH) for name in steps),
        *(
            f"  {title}".ljust(width)
            + "".join(f"{step['limits'][rate] / 1e9:.0f}".rjust(_WIDTH) for step in steps.values())
            for rate, title in _RATES.items()
        ),
        "",
        "share of limit, share of step".ljust(width) + "".join(name.rjust(_WIDTH) for name in steps),
    ]
    for label in labels:
        lines.append(label.ljust(width) + "".join(_cell(step, label).rjust(_WIDTH) for step in steps.values()))
    lines.append("step".ljust(width) + "".join(_total(step).rjust(_WIDTH) for step in steps.values()))
    lines.append(f"! more than {100 * MARKED_ABOVE:.0f} % of a step, and below {100 * MARKED_BELOW:.0f} % of its limit")
    if any(" ? " in line for line in lines):
        lines.append(ABOVE_LIMIT)
    return "\n".join([*lines, *figures["warnings"]])


def is_marked(op: dict[str, Any]) -> bool:
    """op: of figures["steps"][name]["ops"]."""
    limit = op["limit_seconds"]
    return op["share_of_step"] > MARKED_ABOVE and limit is not None and limit < MARKED_BELOW * op["seconds"]


def _most(steps: dict[str, dict[str, Any]], label: str) -> float:
    shares: list[float] = [step["ops"][label]["share_of_step"] for step in steps.values() if label in step["ops"]]
    return max(shares)


def _cell(step: dict[str, Any], label: str) -> str:
    if label not in step["ops"]:
        return "-"
    op = step["ops"][label]
    share = f"{100 * op['share_of_step']:5.1f} %"
    if op["limit_seconds"] is None:
        return share
    reached = op["limit_seconds"] / max(op["seconds"], 1e-12)
    return f"{mark(reached, slow=is_marked(op))}{100 * reached:.0f} % {share}"


def _total(step: dict[str, Any]) -> str:
    reached = step["limit_seconds"] / max(step["seconds"], 1e-12)
    return f"{mark(reached)}{100 * reached:.0f} % {1e3 * step['seconds']:.2f} ms"


def mark(reached: float, *, slow: bool = False) -> str:
    """Before a share of a limit: "! " what is slow, "? " what is above it by more than rounding."""
    return "! " if slow else "? " if reached > 1.005 else ""
