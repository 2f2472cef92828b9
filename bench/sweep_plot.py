"""The cells of bench/sweep.py as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweep_cells import Cell


def plot(cells: Sequence[Cell], output: Path) -> bool:
    """Tokens per second and the step's overhead by sequences, attention by context. False: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rate, overhead, attention) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for threads in sorted({cell.threads for cell in cells}):
        style = "-" if threads > 1 else "--"
        for index, context in enumerate(sorted({cell.context for cell in cells})):
            part = [cell for cell in cells if (cell.threads, cell.context) == (threads, context)]
            label, xs = f"context {context}, {threads} threads", [cell.sequences for cell in part]
            rate.plot(xs, [cell.tokens_per_second for cell in part], style, marker="o", color=f"C{index}", label=label)
            overhead.plot(xs, [cell.step_ms - cell.forward_ms for cell in part], style, marker="o", color=f"C{index}")
        for index, sequences in enumerate(sorted({cell.sequences for cell in cells})):
            part = [cell for cell in cells if (cell.threads, cell.sequences) == (threads, sequences)]
            label, xs = f"{sequences} sequences, {threads} threads", [cell.context for cell in part]
            attention.plot(xs, [c.attention_ms for c in part], style, marker="o", color=f"C{index}", label=label)
    for axes, title, x_label in (
        (rate, "decode, tokens/s", "sequences"),
        (overhead, "a step beside the kernels, ms", "sequences"),
        (attention, "attention in a decode step, ms", "context, tokens"),
    ):
        axes.set(title=title, xlabel=x_label, xscale="log", yscale="log")
        axes.grid(visible=True, which="both", alpha=0.3)
    rate.legend(fontsize=7)
    attention.legend(fontsize=6, ncols=2)
    figure.savefig(output, dpi=120)
    pyplot.close(figure)
    return True
