"""How fast decoding is, from 1 to 256 sequences and 128 to 8k context, on one thread and on more.

    python bench/sweep.py --model MODEL [--threads 1 2] [--sequences 1 2 4 ...] [--contexts 128 512 2048 8192]
        [--seconds 0.6] [--kv-gib 3.25] [--w2-rounds 5] [--output DIR]

Every cell is the median of decode steps in a steady state, the thread counts one after the other in each cell, each
step split into the model's kernels, sampling and all else. Cells whose KV does not fit into --kv-gib are left out.
Then the workload w2 (bench/workloads.py) is replayed with each number of threads in turn. Says, with a fit:

    2 threads over 1 on w2; what a step costs beside the kernels, by sequences; what attention costs, by context

Prints tables; writes DIR/sweep.json, DIR/sweep.md and, where matplotlib is installed, DIR/sweep.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fits import Line
from sweep_cells import Bench, Cell
from sweep_plot import plot
from workloads import make

from fastpaged.cli.workload import WorkloadRequest
from fastpaged.cli.workload_run import replay

_MIN_POINTS = 3  # below which a line is not worth fitting


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 2048, 8192])
    parser.add_argument("--seconds", type=float, default=0.6, help="for the steps of a cell (default: %(default)s)")
    parser.add_argument("--kv-gib", type=float, default=3.25, help="KV pool of each engine (default: %(default)s)")
    parser.add_argument("--w2-rounds", type=int, default=5, help="0: leave w2 out (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    return parser.parse_args()


def measured(benches: Sequence[Bench], args: argparse.Namespace) -> Iterator[Cell]:
    """Cell by cell, the thread counts in turn."""
    for context in args.contexts:
        for sequences in args.sequences:
            for bench in benches:
                if bench.fits(sequences, context):
                    cell = bench.decode(sequences, context, args.seconds)
                    say(
                        f"{cell.sequences} x {cell.context}, {cell.threads} threads: {cell.tokens_per_second:.0f} tok/s"
                    )
                    yield cell


def w2_rates(benches: Sequence[Bench], rounds: int) -> dict[int, list[float]]:
    """Output tokens per second of w2 by number of threads, a round after the other."""
    vocab_size = benches[0].engine.worker.model_config.vocab_size
    requests = [WorkloadRequest(r["prompt"], r["out"]) for r in make("w2", vocab_size)]
    rates: dict[int, list[float]] = {bench.threads: [] for bench in benches}
    for index in range(rounds):
        for bench in benches if index % 2 == 0 else reversed(benches):
            run = replay(bench.engine, requests)
            rates[bench.threads].append(run.num_output_tokens / run.elapsed_time)
            say(f"w2, round {index + 1} of {rounds}, {bench.threads} threads: {rates[bench.threads][-1]:.0f} tok/s")
    return rates


def tables(cells: Sequence[Cell]) -> str:
    """For each number of threads: tokens per second, and the step's milliseconds (kernels + all else)."""
    contexts = sorted({cell.context for cell in cells})
    lines = []
    for threads in sorted({cell.threads for cell in cells}):
        of_threads = {(c.sequences, c.context): c for c in cells if c.threads == threads}
        head = " | ".join(f"context {context}" for context in contexts)
        lines += [f"### {threads} thread{'s' if threads > 1 else ''}: tokens/s (step in ms: kernels + all else)", ""]
        lines += [f"| sequences | {head} |", "|---:|" + "---:|" * len(contexts)]
        for sequences in sorted({cell.sequences for cell in cells}):
            row = [_entry(of_threads.get((sequences, context))) for context in contexts]
            lines.append(f"| {sequences} | {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines)


def _entry(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    rest = cell.step_ms - cell.forward_ms
    return f"{cell.tokens_per_second:.0f} ({cell.forward_ms:.1f} + {rest:.2f})"


def findings(cells: Sequence[Cell], rates: dict[int, list[float]]) -> dict[str, Any]:
    """Fits and ratios, for JSON."""
    found: dict[str, Any] = {"overhead": [], "attention": []}
    for threads in sorted({cell.threads for cell in cells}):
        of_threads = [cell for cell in cells if cell.threads == threads]
        for context in sorted({cell.context for cell in of_threads}):
            points = [(c.sequences, c.overhead_ms + c.sample_ms) for c in of_threads if c.context == context]
            _add(found["overhead"], {"threads": threads, "context": context}, points)
        for sequences in sorted({cell.sequences for cell in of_threads}):
            points = [(c.context, c.attention_ms) for c in of_threads if c.sequences == sequences]
            _add(found["attention"], {"threads": threads, "sequences": sequences}, points)
    if rates:
        counts = sorted(rates)
        found["w2"] = {str(count): rates[count] for count in counts}
        pairs = zip(rates[counts[-1]], rates[counts[0]], strict=True)
        found["w2_speedup"] = statistics.median(many / one for many, one in pairs)
    return found


def _add(fits: list[dict[str, Any]], of: dict[str, int], points: Sequence[tuple[int, float]]) -> None:
    if len(points) >= _MIN_POINTS and all(y > 0 for _, y in points):
        line = Line.fit([x for x, _ in points], [y for _, y in points])
        fits.append({**of, **dataclasses.asdict(line)})


def findings_text(found: dict[str, Any]) -> str:
    """For people."""
    lines = []
    if "w2" in found:
        counts = list(found["w2"])
        medians = [f"{statistics.median(found['w2'][count]):.0f} tok/s with {count}" for count in counts]
        lines.append(f"Threads on w2: {', '.join(medians)}; {found['w2_speedup']:.2f} x, median of the rounds' ratios.")
    lines += ["", "A step beside the kernels (sampling included), ms = fixed + slope x sequences:", ""]
    lines += ["| threads | context | fixed, ms | µs per sequence | r2 |", "|---:|---:|---:|---:|---:|"]
    for fit in found["overhead"]:
        figures = f"{fit['fixed']:.3f} | {1e3 * fit['slope']:.2f} | {fit['r2']:.3f}"
        lines.append(f"| {fit['threads']} | {fit['context']} | {figures} |")
    lines += ["", "Attention in a decode step, ms = fixed + slope x context; the slope by sequence:", ""]
    lines += [
        "| threads | sequences | fixed, ms | µs per 1000 tokens | r2 |",
        "|---:|---:|---:|---:|---:|",
    ]
    for fit in found["attention"]:
        per_sequence = 1e6 * fit["slope"] / fit["sequences"]
        figures = f"{fit['fixed']:.3f} | {per_sequence:.1f} | {fit['r2']:.3f}"
        lines.append(f"| {fit['threads']} | {fit['sequences']} | {figures} |")
    return "\n".join(lines)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    most = max(args.sequences)
    benches = [Bench(args.model, threads, most, int(args.kv_gib * 2**30)) for threads in sorted(set(args.threads))]
    try:
        cells = list(measured(benches, args))
        rates = w2_rates(benches, args.w2_rounds) if args.w2_rounds else {}
    finally:
        for bench in benches:
            bench.close()
    found = findings(cells, rates)
    text = f"{tables(cells)}\n{findings_text(found)}\n"
    print(text)
    rows = [{**dataclasses.asdict(cell), "tokens_per_second": cell.tokens_per_second} for cell in cells]
    figures = {"model": Path(args.model).name, "cells": rows, **found}
    (args.output / "sweep.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    (args.output / "sweep.md").write_text(text, encoding="utf-8")
    if not plot(cells, args.output / "sweep.png"):
        say("no plot: matplotlib is not installed (pip install 'fastpaged[bench]')")


if __name__ == "__main__":
    main()
