"""What preemption costs by block size, as bench/pressure.py finds it, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_LABELS = {"recompute": "always recompute", "swap": "always swap", "auto": "by cost"}

Curves = Mapping[str, Sequence[tuple[int, float]]]  # (block size, seconds) by mode


def plot(panels: Mapping[str, Curves], output: Path) -> bool:
    """One beside the other, by title. False: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.5), layout="constrained")
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
        for mode, points in curves.items():
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, marker="o", linestyle="--" if mode == "auto" else "-", label=_LABELS[mode])
        axes.set(title=title, xlabel="block size, tokens", ylabel="seconds of recomputing and copying", ylim=(0, None))
        axes.set_xscale("log", base=2)
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend()
    figure.savefig(output / "pressure.png", dpi=120)
    pyplot.close(figure)
    return True
