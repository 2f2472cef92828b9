"""Latency against load, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What the figure needs of every run.
METRICS = ("ttft", "itl")
PERCENTILE = 99
_PANELS = {"ttft": "Time to first token", "itl": "Time between tokens"}
_COLORS = {"median": "#1f6f8b", "p99": "#d1495b"}
_INK, _GRID = "#333333", "#dddddd"


def check_installed() -> None:
    """InvalidRequestError if this installation cannot draw."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidRequestError("--plot needs matplotlib: pip install 'fastpaged[bench]'") from None


def latency_figure(runs: Sequence[Mapping[str, Any]], subtitle: str) -> Figure:
    """runs: figures, with those of METRICS and their PERCENTILE. One with all requests at once is drawn at the rate
    that the server managed, as a mark of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    figure.suptitle(subtitle, fontsize=11, color=_INK)
    at_a_rate = sorted((run for run in runs if run["request_rate"] != "inf"), key=lambda run: run["request_rate"])
    at_once = [run for run in runs if run["request_rate"] == "inf"]
    for axes, metric in zip(figure.subplots(1, len(METRICS)), METRICS, strict=True):
        _draw(axes, metric, at_a_rate, at_once)
    return figure


def save_plot(runs: Sequence[Mapping[str, Any]], subtitle: str, output: Path) -> None:
    """As a PNG, or what else the file's ending says."""
    latency_figure(runs, subtitle).savefig(output)


def _draw(
    axes: Axes, metric: str, at_a_rate: Sequence[Mapping[str, Any]], at_once: Sequence[Mapping[str, Any]]
) -> None:
    rates = [run["request_rate"] for run in at_a_rate]
    lines = {name: [run[f"{name}_{metric}_ms"] for run in at_a_rate] for name in _COLORS}
    for name, color in _COLORS.items():
        if rates:
            axes.plot(rates, lines[name], "-o", color=color, lw=2, ms=5, label=name.replace("median", "p50"))
        for run in at_once:
            value = run[f"{name}_{metric}_ms"]
            axes.plot([run["request_throughput"]], [value], "D", color=color, mfc="white", ms=7, label=f"_{name}")
            if name == "p99" and value is not None:
                at = (run["request_throughput"], value)
                axes.annotate(
                    "all at once", at, (-6, 8), textcoords="offset points", ha="right", color=_INK, fontsize=8
                )
    if rates and None not in (*lines["median"], *lines["p99"]):
        axes.fill_between(rates, lines["median"], lines["p99"], color=_COLORS["p99"], alpha=0.08, lw=0)
    axes.set_title(_PANELS[metric], loc="left", fontsize=11, color=_INK)
    axes.set_xlabel("requests per second", color=_INK)
    axes.set_ylabel("ms", color=_INK)
    axes.set_xlim(left=0)
    values = [run[f"{name}_{metric}_ms"] for run in (*at_a_rate, *at_once) for name in _COLORS]
    known = [value for value in values if value]
    if known and max(known) > 30 * min(known):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if rates:
        axes.legend(frameon=False)
