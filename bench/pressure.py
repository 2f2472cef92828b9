"""Twice as many requests as there is room for: what preemption costs by swapping, by recomputing, and by cost.

    python bench/pressure.py [--traces DIR] [--requests 1600] [--parts 4] [--output DIR]

DIR holds sharegpt_paper_opt.csv.gz and alpaca_calibrated.csv.gz (columns prompt_tokens, output_tokens); without it
lengths are made up. The scheduler itself runs, with no model, on a virtual clock: a step takes what the cost model of
an A100 with OPT-13B says (PagedAttention's own machine), copies included. Requests arrive at twice the rate at which
they are served when all are there from the start; rates are counted in steps, so that under each mode the same requests
meet, and modes differ by what they cost alone.

First five loads at block size 16, each cut into parts that are served one by one and added up; then, at block sizes
from 1 to 256, one request of 256 tokens that is preempted once (the paper's figure 19a), and a part of the first load.
A run costs its recomputed tokens x seconds per token + its copied blocks x seconds per block. Prints tables; writes
DIR/pressure.json and, where matplotlib is installed, DIR/pressure.png. Exit status 1 if a request is not answered in
full, one is preempted twice within the window, or by cost is dearer than 1.05 x the better of the other two.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pressure_load import MAX_MODEL_LEN, Load, loads, parts
from pressure_plot import plot

from fastpaged import _core

MODES = ("recompute", "swap", "auto")
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_ABOVE_BEST = 1.05  # of by cost, against the better of the other two

_BLOCK_SIZE = 16
_AT_ONCE = 24  # requests of mean length that the pool holds
_WINDOW = 8  # steps
_MAX_NUM_SEQS = 256
_MAX_NUM_BATCHED_TOKENS = 2560
_COPIES_PER_BLOCK = 80  # K and V of 40 layers, each a copy of its own
_NANO = 1e9
_FIGURE_19_TOKENS = 256


@dataclass(frozen=True)
class Run:
    """One load under one mode. Seconds are of the virtual clock."""

    load: str
    mode: str
    block_size: int
    num_blocks: int
    num_requests: int
    num_finished: int  # with all their tokens
    num_preemptions: int
    num_within_window: int  # of groups that had come back not long before
    num_tokens_recomputed: int
    num_blocks_out: int
    num_blocks_in: int
    cost_s: float
    makespan_s: float


def costs_of(block_size: int) -> _core.PreemptionCosts:
    """As measured for figure 19 of the paper: each way the bytes of 256 tokens, and each copy its own overhead."""
    return _core.PreemptionCosts(
        seconds_per_token=42.2e-3 / 256,
        seconds_per_block_out=16.1e-3 * block_size / 256 + _COPIES_PER_BLOCK * 1.9e-6,
        seconds_per_block_in=17.3e-3 * block_size / 256 + _COPIES_PER_BLOCK * 3.3e-6,
    )


def step_seconds(plan: _core.SchedulerOutput, contexts: int) -> float:
    """Of computing a plan; contexts: tokens of K and V that its decoding sequences read."""
    num_prompts = len(plan.cached)
    return 1e-3 * (
        6.5 + max(20.0, 0.1266 * plan.num_tokens) + 0.64e-3 * contexts + 0.266 * plan.num_samples + 4.4 * num_prompts
    )


def num_pool_blocks(load: Load, block_size: int) -> int:
    """Room for so many requests at once, for the longest, and for all beginnings that are shared."""
    sizes = [request.num_tokens for request in load.requests]
    tokens = max(_AT_ONCE * sum(sizes) // len(sizes), 2 * max(sizes))
    beginnings = {tuple(request.prompt_token_ids[: request.num_shared_tokens]) for request in load.requests}
    return -(-tokens // block_size) + sum(-(-len(beginning) // block_size) for beginning in beginnings)


def _scheduler(mode: str, block_size: int, num_blocks: int, *, prefix_caching: bool = False) -> _core.Scheduler:
    return _core.Scheduler(
        num_blocks=num_blocks,
        block_size=block_size,
        num_host_blocks=num_blocks,
        max_num_seqs=_MAX_NUM_SEQS,
        max_num_batched_tokens=_MAX_NUM_BATCHED_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        prefix_caching=prefix_caching,
        policy=_core.SchedulerPolicy(preemption_mode=mode, resume_grace_steps=_WINDOW),
        costs=costs_of(block_size),
    )


def _greedy() -> _core.SamplingParams:
    return _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)


def cost_of(scheduler: _core.Scheduler, block_size: int) -> float:
    """Of all its preemptions, in seconds."""
    stats, costs = scheduler.stats, costs_of(block_size)
    return (
        stats.num_tokens_recomputed * costs.seconds_per_token
        + stats.num_blocks_swapped_out * costs.seconds_per_block_out
        + stats.num_blocks_swapped_in * costs.seconds_per_block_in
    )


def one_preemption(mode: str, block_size: int) -> float:
    """Seconds that it costs to preempt a request of which 256 tokens are computed."""
    scheduler = _scheduler(mode, block_size, 2 * _FIGURE_19_TOKENS)
    scheduler.add(0, [1] * _FIGURE_19_TOKENS, _greedy(), 9, [])
    for _ in range(2):
        plan = scheduler.schedule()
        scheduler.update_tokens(plan, [0] * plan.num_results)
        scheduler.preempt(0, mode)
    return cost_of(scheduler, block_size)


class Pressure:
    """A load on its way through a scheduler."""

    def __init__(self, load: Load, mode: str, block_size: int) -> None:
        self._load = load
        self._costs = costs_of(block_size)
        self.num_blocks = num_pool_blocks(load, block_size)
        self.scheduler = _scheduler(mode, block_size, self.num_blocks, prefix_caching=load.prefix_caching)
        self.now_s = 0.0
        self.num_steps = 0
        self.num_within_window = 0
        self._num_tokens = [0] * len(load.requests)  # said so far, by all samples
        self._came_back: dict[int, int] = {}  # step, by request
        self._gone: set[int] = set()

    def run(self, steps_between: float) -> None:
        """Until all is answered; requests arrive so far apart."""
        greedy = _greedy()
        requests = self._load.requests
        num_added = 0
        while num_added < len(requests) or self.scheduler.has_unfinished():
            while num_added < len(requests) and num_added * steps_between <= self.num_steps:
                request = requests[num_added]
                self.scheduler.add(
                    num_added,
                    request.prompt_token_ids,
                    greedy,
                    request.num_output_tokens,
                    [],
                    num_samples=request.num_samples,
                )
                num_added += 1
            self._step()

    def _step(self) -> None:
        self.num_steps += 1
        plan = self.scheduler.schedule(round(self.now_s * _NANO))
        self._note_windows(plan)
        contexts = sum(first_token + 1 for _, first_token, num_tokens in plan.scheduled if num_tokens == 1)
        self.now_s += step_seconds(plan, contexts) + self._copy_seconds(plan)
        for event in self.scheduler.update_tokens(plan, [0] * plan.num_results):
            self._num_tokens[event.group_id] += event.token_id is not None

    def _copy_seconds(self, plan: _core.SchedulerOutput) -> float:
        ways = {"swap_out": self._costs.seconds_per_block_out, "swap_in": self._costs.seconds_per_block_in}
        return sum(ways.get(kind, 0.0) * num_blocks for kind, _, _, num_blocks in plan.copies)

    def _note_windows(self, plan: _core.SchedulerOutput) -> None:
        for group_id in plan.preempted:
            self.num_within_window += self.num_steps <= self._came_back.get(group_id, -_WINDOW) + _WINDOW
            self._gone.add(group_id)
        self._came_back.update((group_id, self.num_steps) for group_id in plan.let_in if group_id in self._gone)

    @property
    def num_finished(self) -> int:
        """Requests that were answered in full."""
        wanted = (request.num_samples * request.num_output_tokens for request in self._load.requests)
        return sum(said == asked for said, asked in zip(self._num_tokens, wanted, strict=True))


def overload(load: Load, mode: str, block_size: int = _BLOCK_SIZE) -> Run:
    """At twice the rate at which they are served when all are there from the start."""
    served = Pressure(load, "recompute", block_size)
    served.run(0.0)
    pressure = Pressure(load, mode, block_size)
    pressure.run(served.num_steps / len(load.requests) / 2)
    stats = pressure.scheduler.stats
    return Run(
        load=load.name,
        mode=mode,
        block_size=block_size,
        num_blocks=pressure.num_blocks,
        num_requests=len(load.requests),
        num_finished=pressure.num_finished,
        num_preemptions=stats.num_preemptions,
        num_within_window=pressure.num_within_window,
        num_tokens_recomputed=stats.num_tokens_recomputed,
        num_blocks_out=stats.num_blocks_swapped_out,
        num_blocks_in=stats.num_blocks_swapped_in,
        cost_s=cost_of(pressure.scheduler, block_size),
        makespan_s=pressure.now_s,
    )


def overload_in_parts(load: Load, mode: str, count: int, block_size: int = _BLOCK_SIZE) -> Run:
    """The load cut into so many: numbers and seconds are sums, the pool the largest."""
    runs = [overload(part, mode, block_size) for part in parts(load, count)]
    totals = {
        field.name: sum(getattr(run, field.name) for run in runs)
        for field in dataclasses.fields(Run)
        if field.name.startswith("num_") or field.name.endswith("_s")
    }
    return dataclasses.replace(runs[0], **(totals | {"num_blocks": max(run.num_blocks for run in runs)}))


def above_best(runs: Sequence[Run]) -> float:
    """What by cost has cost, against the better of the other two. runs: one of each mode, of one load."""
    cost = {run.mode: run.cost_s for run in runs}
    best = min(cost["recompute"], cost["swap"])
    return cost["auto"] / best if best > 0 else 1.0


def complaints(runs: Sequence[Run]) -> list[str]:
    """What is not as it must be. runs: one of each mode, of one load."""
    where = f"{runs[0].load}, block size {runs[0].block_size}"
    wrong = [f"{where}: {run.mode} left requests unanswered" for run in runs if run.num_finished < run.num_requests]
    wrong += [f"{where}: {run.mode} preempted within the window" for run in runs if run.num_within_window > 0]
    if above_best(runs) > MOST_ABOVE_BEST:
        wrong.append(f"{where}: by cost is {above_best(runs):.3f} x the better of the others")
    return wrong


def table(title: str, groups: Sequence[Sequence[Run]]) -> str:
    """For people. groups: of runs that are compared."""
    lines = [
        f"### {title}",
        "",
        "| load | block size | blocks | mode | preemptions | recomputed | out | in | cost, s |",
    ]
    lines[-1] += " makespan, s | auto / best |"
    lines.append("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for runs in groups:
        for run in runs:
            last = f"{above_best(runs):.3f}" if run.mode == "auto" else ""
            lines.append(
                f"| {run.load} | {run.block_size} | {run.num_blocks} | {run.mode} | {run.num_preemptions} | "
                f"{run.num_tokens_recomputed} | {run.num_blocks_out} | {run.num_blocks_in} | {run.cost_s:.2f} | "
                f"{run.makespan_s:.1f} | {last} |"
            )
    return "\n".join([*lines, ""])


def figure_19(costs: Mapping[str, Sequence[float]]) -> str:
    """For people. costs: seconds by mode, for each of BLOCK_SIZES."""
    lines = ["### One request of 256 tokens, preempted once, ms", ""]
    lines += ["| block size | " + " | ".join(costs) + " |", "|---:" * (1 + len(costs)) + "|"]
    for i, block_size in enumerate(BLOCK_SIZES):
        lines.append(f"| {block_size} | " + " | ".join(f"{1e3 * costs[mode][i]:.1f}" for mode in costs) + " |")
    return "\n".join([*lines, ""])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, metavar="DIR", help="where the files of lengths lie")
    parser.add_argument("--requests", type=int, default=1600, help="of each load (default: %(default)s)")
    parser.add_argument("--parts", type=int, default=4, help="that a load is cut into (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    if not 1 <= args.parts <= args.requests:
        parser.error(f"--parts must be from 1 to --requests, got {args.parts} of {args.requests}")
    return args


def main() -> None:
    args = arguments()
    chosen = loads(args.traces, args.requests)
    by_load = [[overload_in_parts(load, mode, args.parts) for mode in MODES] for load in chosen]
    print(table("Five loads", by_load), flush=True)
    alone = {mode: [one_preemption(mode, size) for size in BLOCK_SIZES] for mode in MODES}
    print(figure_19(alone), flush=True)
    one_part = parts(chosen[0], args.parts)[0]
    by_size = [[overload(one_part, mode, size) for mode in MODES] for size in BLOCK_SIZES]
    print(table("By block size", by_size), flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    figures = {
        "one_preemption_s": {mode: dict(zip(BLOCK_SIZES, costs, strict=True)) for mode, costs in alone.items()},
        "by_load": [dataclasses.asdict(run) for runs in by_load for run in runs],
        "by_block_size": [dataclasses.asdict(run) for runs in by_size for run in runs],
    }
    (args.output / "pressure.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    panels = {
        "one request of 256 tokens, preempted once": {
            mode: list(zip(BLOCK_SIZES, alone[mode], strict=True)) for mode in MODES
        },
        f"{chosen[0].name}, twice the capacity": {
            mode: [(runs[i].block_size, runs[i].cost_s) for runs in by_size] for i, mode in enumerate(MODES)
        },
    }
    if not plot(panels, args.output):
        print("no plot: matplotlib is not installed (pip install 'fastpaged[bench]')", file=sys.stderr)
    wrong = [complaint for runs in [*by_load, *by_size] for complaint in complaints(runs)]
    for complaint in wrong:
        print(f"WRONG: {complaint}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
