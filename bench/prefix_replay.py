"""What automatic prefix caching finds in traces of requests: replayed through the scheduler itself, with no model.

    python bench/prefix_replay.py [--trace-dir DIR] [--traces NAME ...] [--in-flight 16] [--host-blocks N ...]
        [--output DIR]

NAME: DIR/NAME.csv.gz (see prefix_traces.py). Without --trace-dir, conversations that are made up from a seed.

First with a pool that nothing has to leave: the hit rate must be that of an ideal cache within 1 %. Then with smaller
ones, down to what the longest request needs; and the smaller ones once more for each host pool of --host-blocks, to
which the device's evicted blocks go. Prints a table; writes DIR/prefix_replay.json and, where matplotlib is installed,
DIR/prefix_replay.png (of the device alone). Exit status 1 if a hit rate without evictions is not the ideal one.

An id of a trace stands for 512 tokens; here it is a block of 16, all of them that id, so that blocks are shared, kept
and evicted as blocks of 512 would be while a replay takes seconds: a token stands for 32. Each prompt ends with tokens
of its own (one at least: the last one is always computed), and each answer has one token for 32 as well, so that what
runs takes as much room as it would. Requests come in the trace's order, as many at a time as --in-flight says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prefix_plot import plot
from prefix_traces import BLOCK_TOKENS, GENERATED, TraceRequest, generated_trace, ideal_hit_rate, read_trace

from fastpaged import _core
from fastpaged.progress import ProgressBar

TRACES = ("mooncake_conversation", "mooncake_synthetic", "sharegpt_multiturn_sarathi")
MOST_OFF = 0.01  # of the ideal hit rate

_BLOCK_SIZE = 16
_SCALE = BLOCK_TOKENS // _BLOCK_SIZE
_MAX_NUM_BATCHED_TOKENS = 8192
_SPARE_BLOCKS = 2  # of the smallest pool, beyond its longest request
_FIRST_OWN_TOKEN = 1 << 24  # ids of blocks are below it


@dataclass(frozen=True)
class Replayed:
    """One trace through one pool. Of num_blocks blocks of prompts num_found were in the cache."""

    num_pool_blocks: int
    num_host_blocks: int
    num_blocks: int
    num_found: int
    num_found_on_host: int
    num_evicted: int  # for good: what has gone to the host is not
    num_moved: int  # copied to the host or back
    num_steps: int
    seconds: float

    @property
    def hit_rate(self) -> float:
        """Share of the blocks of prompts."""
        return self.num_found / self.num_blocks


def tokens_of(number: int, request: TraceRequest) -> tuple[list[int], int]:
    """The prompt that stands for the request with this number, and how many tokens to answer."""
    tokens = [block_id for block_id in request.block_ids for _ in range(_BLOCK_SIZE)]
    rest = max(0, request.num_prompt_tokens - BLOCK_TOKENS * len(request.block_ids))
    tokens += [_FIRST_OWN_TOKEN + number] * (1 + rest // _SCALE)
    return tokens, max(1, request.num_output_tokens // _SCALE)


def blocks_of(request: TraceRequest) -> int:
    """That it holds at its end."""
    tokens, num_out = tokens_of(0, request)
    return -(-(len(tokens) + num_out) // _BLOCK_SIZE)


def replay(
    trace: Sequence[TraceRequest],
    num_pool_blocks: int,
    in_flight: int,
    progress: Callable[[int, int], None] | None = None,
    *,
    num_host_blocks: int = 0,
) -> Replayed:
    """progress: called with (done, total) requests."""
    begin = time.perf_counter()
    scheduler = _core.Scheduler(
        num_blocks=num_pool_blocks,
        block_size=_BLOCK_SIZE,
        max_num_seqs=in_flight,
        max_num_batched_tokens=_MAX_NUM_BATCHED_TOKENS,
        max_model_len=num_pool_blocks * _BLOCK_SIZE,
        prefix_caching=True,
        num_host_blocks=num_host_blocks,
        host_prefix_tier=num_host_blocks > 0,
    )
    greedy = _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
    num_added = num_done = num_found = num_steps = 0
    while num_done < len(trace):
        while num_added < len(trace) and num_added - num_done < in_flight:
            tokens, num_out = tokens_of(num_added, trace[num_added])
            scheduler.add(num_added, tokens, greedy, num_out, [])
            num_added += 1
        plan = scheduler.schedule()
        for group_id, num_tokens in plan.cached:
            num_found += min(num_tokens // _BLOCK_SIZE, len(trace[group_id].block_ids))
        for event in scheduler.update_tokens(plan, [_FIRST_OWN_TOKEN] * plan.num_rows):
            num_done += event.group_finished
        num_steps += 1
        if progress is not None:
            progress(num_done, len(trace))
    num_blocks = sum(len(request.block_ids) for request in trace)
    stats = scheduler.stats
    return Replayed(
        num_pool_blocks=num_pool_blocks,
        num_host_blocks=num_host_blocks,
        num_blocks=num_blocks,
        num_found=num_found,
        num_found_on_host=stats.num_host_prefix_tokens_found // _BLOCK_SIZE,
        num_evicted=stats.num_host_cached_blocks_evicted if num_host_blocks else stats.num_cached_blocks_evicted,
        num_moved=stats.num_prefix_blocks_demoted + stats.num_prefix_blocks_promoted,
        num_steps=num_steps,
        seconds=time.perf_counter() - begin,
    )


def pool_sizes(trace: Sequence[TraceRequest]) -> list[int]:
    """Blocks: room for everything at once first; then from what the longest request needs to that, each the half more
    of the one before it."""
    smallest = max(map(blocks_of, trace)) + _SPARE_BLOCKS
    largest = sum(map(blocks_of, trace)) + _SPARE_BLOCKS
    sizes, size = [largest], smallest
    while size < largest:
        sizes.append(size)
        size += size // 2
    return sizes


def curve(name: str, trace: Sequence[TraceRequest], in_flight: int, num_host_blocks: int = 0) -> list[Replayed]:
    """The whole of one trace, with a progress line: pools up to the first that nothing has to leave, without a host
    pool after the one for everything."""
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    runs: list[Replayed] = []
    for size in pool_sizes(trace)[1 if num_host_blocks else 0 :]:
        if len(runs) > (0 if num_host_blocks else 1) and runs[-1].num_evicted == 0:
            break
        phase = f"{name}, pool of {size} blocks" + (f" and {num_host_blocks} on the host" if num_host_blocks else "")
        progress = None if bar is None else partial(bar, phase)
        runs.append(replay(trace, size, in_flight, progress, num_host_blocks=num_host_blocks))
        if bar is not None:
            bar.clear()
        print(f"{phase}: {runs[-1].hit_rate:.4f} found, {runs[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    return runs


def table(name: str, ideal: float, runs: Sequence[Replayed]) -> str:
    """For people, smallest pool first."""
    lines = [f"### {name}: {runs[0].num_blocks} blocks of {BLOCK_TOKENS} tokens; an ideal cache has {ideal:.4f}", ""]
    lines += ["| pool, 1000 tokens | on the host | found | of the ideal | found on the host | copied | evicted |"]
    lines += ["|---:|---:|---:|---:|---:|---:|---:|"]
    for run in sorted(runs, key=lambda run: (run.num_host_blocks, run.num_pool_blocks)):
        sizes = (f"{blocks * BLOCK_TOKENS / 1e3:.0f}" for blocks in (run.num_pool_blocks, run.num_host_blocks))
        found = f"{run.hit_rate:.4f} | {run.hit_rate / ideal:.1%} | {run.num_found_on_host / run.num_blocks:.4f}"
        lines.append(f"| {' | '.join(sizes)} | {found} | {run.num_moved} | {run.num_evicted} |")
    return "\n".join([*lines, ""])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace-dir", type=Path, help="where the traces lie")
    parser.add_argument("--traces", nargs="+", default=list(TRACES), metavar="NAME")
    parser.add_argument("--in-flight", type=int, default=16, help="requests at a time (default: %(default)s)")
    parser.add_argument(
        "--host-blocks", type=int, nargs="+", default=[], metavar="N", help="sizes of host pools to try besides none"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    if args.in_flight < 1:
        parser.error(f"--in-flight must be at least 1, got {args.in_flight}")
    if any(size < 1 for size in args.host_blocks):
        parser.error(f"--host-blocks must be at least 1, got {args.host_blocks}")
    return args


def main() -> None:
    args = arguments()
    if args.trace_dir is None:
        traces = {GENERATED: generated_trace()}
    else:
        traces = {name: read_trace(args.trace_dir / f"{name}.csv.gz") for name in args.traces}
    args.output.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Replayed]] = {}
    figures, wrong = [], []
    for name, trace in traces.items():
        ideal = ideal_hit_rate(trace)
        curves[name] = curve(name, trace, args.in_flight)
        tiered = [run for size in args.host_blocks for run in curve(name, trace, args.in_flight, size)]
        print(table(name, ideal, [*curves[name], *tiered]), flush=True)
        if abs(curves[name][0].hit_rate - ideal) > MOST_OFF * ideal:
            wrong.append(name)
        runs = [{**dataclasses.asdict(run), "hit_rate": run.hit_rate} for run in [*curves[name], *tiered]]
        figures.append({"trace": name, "num_requests": len(trace), "ideal": ideal, "runs": runs})
    (args.output / "prefix_replay.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    points = {
        name: [(run.num_pool_blocks * BLOCK_TOKENS, run.hit_rate) for run in runs] for name, runs in curves.items()
    }
    if not plot(points, {name: ideal_hit_rate(trace) for name, trace in traces.items()}, args.output):
        print("no plot: matplotlib is not installed (pip install 'fastpaged[bench]')", file=sys.stderr)
    for name in wrong:
        print(f"{name}: WRONG: without evictions the hit rate is not the ideal one")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
