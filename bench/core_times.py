"""The core: how long planning takes. Runs bench_core, prints a table and writes the rows for whoever compares.

    python bench/core_times.py build/bench/bench/cpp/bench_core [--output bench/results.json] [--repetitions 7]

A row is {"name", "median_us", "limit_us"}: the median over the repetitions, in microseconds, of what one step (of the
scheduler; the median of a repetition's steps) or one call (of the pool and the tables; their mean) takes, and the
promise about it, null where there is none. Exit status 1 if a benchmark fails or a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

LIMITS_US: Mapping[str, float] = {
    "schedule_and_build/256": 50.0,
    "prefix_lookup/32768": 300.0,
    "schedule_and_build_with_preemption/256/swap": 200.0,
    "schedule_and_build_with_preemption/256/swap/max": 200.0,
    "schedule_and_build_with_preemption/256/recompute": 200.0,
    "schedule_and_build_with_preemption/256/recompute/max": 200.0,
    "schedule_and_build_with_preemption/256/swap/return": 200.0,
    "schedule_and_build_with_preemption/256/recompute/return": 200.0,
}
# Row -> (another row of the same run, how many times that one's median it may take): planning is linear in sequences
# and does not depend on the context. The factors leave room for caches: what is held against is the next power.
LIMITS_BY_ROW: Mapping[str, tuple[str, float]] = {
    "schedule_and_build/1024": ("schedule_and_build/256", 8.0),
    "schedule_and_build/256/context:8192": ("schedule_and_build/256/context:1024", 2.0),
}
MICROSECONDS: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
HOW_IT_RAN = re.compile(r"/(iterations:\d+|repeats:\d+|manual_time|real_time)")  # what the library adds to a name


class Row(TypedDict):
    """One measurement of bench/results.json."""

    name: str
    median_us: float
    limit_us: float | None


def rows_of(report: Mapping[str, Any]) -> list[Row]:
    """The rows of Google Benchmark's JSON report. A benchmark that stopped with an error is a SystemExit."""
    for run in report["benchmarks"]:
        if run.get("error_occurred"):
            raise SystemExit(f"{run['name']}: {run['error_message']}")
    medians = [run for run in report["benchmarks"] if run.get("aggregate_name") == "median"]
    measured = dict(measurements(medians))
    missing = (LIMITS_US.keys() | LIMITS_BY_ROW.keys()) - measured.keys()
    if missing:
        raise SystemExit(f"nothing was measured for {', '.join(sorted(missing))}")
    limits = {name: factor * measured[other] for name, (other, factor) in LIMITS_BY_ROW.items()} | dict(LIMITS_US)
    return [Row(name=name, median_us=us, limit_us=limits.get(name)) for name, us in measured.items()]


def measurements(medians: list[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for run in medians:
        name = HOW_IT_RAN.sub("", run["run_name"])
        yield name, run.get("median_us", run["real_time"] * MICROSECONDS[run["time_unit"]])
        if "max_us" in run:
            yield f"{name}/max", run["max_us"]


def broken(row: Row) -> bool:
    return row["limit_us"] is not None and row["median_us"] > row["limit_us"]


def print_table(rows: list[Row]) -> None:
    width = max(len(row["name"]) for row in rows)
    print(f"{'':<{width}}  {'median':>12}  {'promised':>10}")
    for row in rows:
        promise = "" if row["limit_us"] is None else f"< {row['limit_us']:.0f} us"
        verdict = "   BROKEN" if broken(row) else ""
        print(f"{row['name']:<{width}}  {row['median_us']:>9.3f} us  {promise:>10}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench_core", type=Path)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    args = parser.parse_args()

    command = [str(args.bench_core), "--benchmark_format=json", f"--benchmark_repetitions={args.repetitions}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{args.bench_core} failed with {done.returncode}")
    rows = rows_of(json.loads(done.stdout))
    print_table(rows)
    lines = ",\n".join(f"  {json.dumps({**row, 'median_us': round(row['median_us'], 3)})}" for row in rows)
    args.output.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    sys.exit(1 if any(broken(row) for row in rows) else 0)


if __name__ == "__main__":
    main()
