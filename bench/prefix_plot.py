"""The hit rates of bench/prefix_replay.py as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def plot(curves: Mapping[str, Sequence[tuple[int, float]]], ideals: Mapping[str, float], output: Path) -> bool:
    """Hit rate by tokens in the pool, with each trace's ideal. False: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for index, (name, points) in enumerate(curves.items()):
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, marker="o", color=f"C{index}", label=name)
        axes.axhline(ideals[name], linestyle="--", color=f"C{index}", linewidth=1)
    axes.set(
        title="prompt blocks found in the cache (dashed: by a cache that forgets nothing)",
        xlabel="KV pool, tokens",
        ylabel="share of blocks of 512 tokens",
        xscale="log",
        ylim=(0, 1),
    )
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(output / "prefix_replay.png", dpi=120)
    pyplot.close(figure)
    return True
