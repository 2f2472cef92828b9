"""What preemption costs by block size, as bench/pressure.py finds it, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_LABELS = {"recompute": "always recompute", "swap": "always swap", "auto": "by cost"}


def plot(curves: Mapping[str, Sequence[tuple[int, float]]], output: Path) -> bool:
    """(block size, seconds) by mode. False: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for mode, points in curves.items():
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, marker="o", linestyle="--" if mode == "auto" else "-", label=_LABELS[mode])
    axes.set(
        title="what preemption costs, ShareGPT's lengths at twice the capacity",
        xlabel="block size, tokens",
        ylabel="seconds of recomputing and copying",
        xscale="log",
        yscale="log",
    )
    axes.set_xscale("log", base=2)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(output / "pressure.png", dpi=120)
    pyplot.close(figure)
    return True
