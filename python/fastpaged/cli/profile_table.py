"""What a step profile looks like on a terminal."""

from __future__ import annotations

from typing import Any

_BAR_WIDTH = 30


def profile_table(profile: dict[str, Any]) -> str:
    """profile: StepProfile.as_dict(). A line a phase, and below "forward" a line an op kind: its time a step, its share
    of the whole, and that share as a bar."""
    num_steps, total = max(profile["num_steps"], 1), max(profile["total_seconds"], 1e-12)
    lines = [f"{profile['num_steps']} steps, {1e3 * total / num_steps:.3f} ms each"]
    for phase, seconds in profile["phases"].items():
        lines.append(_line(phase, seconds, num_steps, total))
        if phase == "forward":
            ops = sorted(profile["ops"].items(), key=lambda item: -item[1]["seconds"])
            lines += [_line(f"  {op}", times["seconds"], num_steps, total) for op, times in ops]
    return "\n".join(lines)


def _line(name: str, seconds: float, num_steps: int, total: float) -> str:
    share = seconds / total
    bar = "#" * round(share * _BAR_WIDTH)
    return f"{name:<24}{1e3 * seconds / num_steps:>10.3f} ms{100 * share:>7.1f} %  {bar}".rstrip()
