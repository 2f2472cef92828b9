"""What a step profile looks like on a terminal."""

from __future__ import annotations

from typing import Any

from fastpaged.cli.kernel_table import ABOVE_LIMIT
from fastpaged.cli.limits_line import limits_line

_BAR_WIDTH = 30
_HEAD = f"{'':<24}{'ms a step':>10}{'share':>9}{'limit':>10}{'reached':>9}{'lost ms':>10}"


def profile_table(profile: dict[str, Any]) -> str:
    """profile: StepProfile.as_dict(). A line a phase, and below "forward" a line an op kind: its time a step, its share
    of the whole; what the machine's limits allow, how much of that is reached, and what is lost to it; the share as a
    bar. What is no op could take no time at all: it is lost."""
    num_steps, total = max(profile["num_steps"], 1), max(profile["total_seconds"], 1e-12)
    ops = sorted(profile["ops"].items(), key=lambda item: -item[1]["seconds"])
    limit = sum(op["limit_seconds"] for _, op in ops)

    def line(name: str, seconds: float, limit: float = 0.0) -> str:
        share = seconds / total
        reached = limit / max(seconds, 1e-12)
        mark = " ?" if reached > 1.005 else " %"
        allowed = f"{1e3 * limit / num_steps:>10.3f}{100 * reached:>7.0f}{mark}" if limit else " " * 19
        lost = 1e3 * (seconds - limit) / num_steps
        bar = "#" * round(share * _BAR_WIDTH)
        row = f"{name:<24}{1e3 * seconds / num_steps:>10.3f}{100 * share:>7.1f} %{allowed}{lost:>10.3f}"
        return f"{row}  {bar}".rstrip()

    lines = [f"{profile['num_steps']} steps, {1e3 * total / num_steps:.3f} ms each"]
    if "machine" in profile:
        lines.append(f"limits: {limits_line(profile['machine'])}")
    lines.append(_HEAD)
    for phase, seconds in profile["phases"].items():
        if phase == "forward":
            lines.append(line(phase, seconds, limit))
            lines += [line(f"  {name}", op["seconds"], op["limit_seconds"]) for name, op in ops]
        else:
            lines.append(line(phase, seconds))
    lines.append(line("total", total, limit))
    if any(op["limit_seconds"] > 1.005 * op["seconds"] for _, op in ops):
        lines.append(ABOVE_LIMIT)
    return "\n".join([*lines, *profile.get("warnings", [])])
