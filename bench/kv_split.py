"""Where the slots of the KV pool go under pressure, by block size: the scheduler itself, with no model.

    python bench/kv_split.py [--trace-dir DIR] [--requests 10000] [--block-sizes 1 2 ... 128] [--output DIR]

Requests have the lengths of DIR/sharegpt_paper_opt.csv.gz, or without --trace-dir of distributions like them. Of ten,
one wants several samples (2 to 4), and two begin with one of four prompts that they share (200 to 800 tokens). There
are always more than fit; the pool has 15,728 slots, as a 13B model had on 40 GB in the paper.

At every step, after it was planned and after it was done, the split must sum to all slots: exit status 1 if it ever
does not, or if at block size 16 less than 95.5 % of the slots in use hold tokens. Shares are means over steps, as they
are while a step is computed: the slots that it is about to fill are reserved. Prints a table; writes DIR/kv_split.json
and, where matplotlib is installed, DIR/kv_split.png.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import io
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastpaged import _core
from fastpaged.progress import ProgressBar

TRACE = "sharegpt_paper_opt"
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
NUM_SLOTS = 15_728
LEAST_SHARE = 0.955  # of the slots in use at block size 16

_MAX_MODEL_LEN = 4096
_IN_FLIGHT = 128
_MOST_TOKENS = 2048  # of prompt and answer
_FIRST_OUTPUT_TOKEN = 1 << 30  # ids of prompts' tokens are below it
_FIGURES = ("token_states", "reserved", "internal_waste", "free", "cached_free", "saved")


@dataclass(frozen=True)
class SplitRequest:
    """Tokens of its own, and those that it shares."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_samples: int = 1
    shared: int | None = None  # which of the shared beginnings


SHARED_TOKENS = (200, 400, 600, 800)  # of the beginnings that requests share


@dataclass(frozen=True)
class Run:
    """One block size. Means over steps of slots, of all there are; token_state_share: of those in use."""

    block_size: int
    num_blocks: int
    means: dict[str, float]
    token_state_share: float
    token_state_share_after: float  # the same between steps
    num_steps: int
    num_preemptions: int
    seconds: float


def read_lengths(file: Path) -> list[tuple[int, int]]:
    """(prompt, output) of each row of a .csv.gz with the columns prompt_tokens and output_tokens."""
    rows = csv.DictReader(io.StringIO(gzip.decompress(file.read_bytes()).decode()))
    return [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in rows]


def generated_lengths(count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Like those of ShareGPT: short prompts and some long ones, answers of a few hundred tokens."""
    lengths: list[tuple[int, int]] = []
    while len(lengths) < count:
        short = rng.random() < 0.72
        prompt = max(1, round(rng.lognormvariate(3.05, 0.85) if short else rng.lognormvariate(5.95, 0.95)))
        output = max(1, round(rng.gammavariate(1.318, 262.3)))
        if prompt + output < _MOST_TOKENS:
            lengths.append((prompt, output))
    return lengths


def load(count: int, lengths: Sequence[tuple[int, int]] | None, seed: int = 0) -> list[SplitRequest]:
    """The first so many of these lengths, from the beginning again if there are fewer; or made-up ones."""
    rng = random.Random(f"kv_split:{seed}")
    taken = generated_lengths(count, rng) if lengths is None else itertools.islice(itertools.cycle(lengths), count)
    return [
        SplitRequest(
            prompt,
            output,
            num_samples=rng.randrange(2, 5) if rng.random() < 0.1 else 1,
            shared=rng.randrange(len(SHARED_TOKENS)) if rng.random() < 0.2 else None,
        )
        for prompt, output in taken
    ]


def prompt_of(number: int, request: SplitRequest) -> list[int]:
    """Tokens that no other request has, after those that it shares."""
    shared = [] if request.shared is None else [request.shared] * SHARED_TOKENS[request.shared]
    first = len(SHARED_TOKENS) + number * _MOST_TOKENS
    return shared + list(range(first, first + request.num_prompt_tokens))


def check_sum(split: _core.SlotSplit) -> None:
    """Raises AssertionError unless every slot is one thing."""
    parts = split.token_states + split.reserved + split.internal_waste + split.free
    if parts != split.num_slots or min(split.token_states, split.reserved, split.internal_waste, split.free) < 0:
        raise AssertionError(f"the split sums to {parts} of {split.num_slots} slots")


def share_of_tokens(split: _core.SlotSplit) -> float:
    in_use = split.num_slots - split.free
    return split.token_states / in_use if in_use else 1.0


def run(
    requests: Sequence[SplitRequest],
    block_size: int,
    num_slots: int = NUM_SLOTS,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """All of them, as many at a time as fit. AssertionError if the split ever does not sum to all slots."""
    begin = time.perf_counter()
    num_blocks = num_slots // block_size
    scheduler = _core.Scheduler(
        num_blocks=num_blocks,
        block_size=block_size,
        num_host_blocks=num_blocks // 4,
        max_num_seqs=_IN_FLIGHT,
        max_num_batched_tokens=2048,
        max_model_len=_MAX_MODEL_LEN,
        prefix_caching=True,
    )
    sums = dict.fromkeys(_FIGURES, 0)
    share = share_after = 0.0
    num_added = num_done = num_steps = 0
    tokens = itertools.count(_FIRST_OUTPUT_TOKEN)
    while num_done < len(requests):
        while num_added < len(requests) and num_added - num_done < _IN_FLIGHT:
            request = requests[num_added]
            prompt = prompt_of(num_added, request)
            scheduler.add(
                num_added, prompt, _sampling(), request.num_output_tokens, [], num_samples=request.num_samples
            )
            num_added += 1
        plan = scheduler.schedule()
        device, host = scheduler.slot_splits()
        check_sum(device)
        check_sum(host)
        share += share_of_tokens(device)
        for name in _FIGURES:
            sums[name] += getattr(device, name)
        for event in scheduler.update_tokens(plan, list(itertools.islice(tokens, plan.num_results))):
            num_done += event.group_finished
        device, host = scheduler.slot_splits()
        check_sum(device)
        check_sum(host)
        share_after += share_of_tokens(device)
        num_steps += 1
        if progress is not None and num_steps % 100 == 0:
            progress(num_done, len(requests))
    return Run(
        block_size=block_size,
        num_blocks=num_blocks,
        means={name: total / num_steps / (num_blocks * block_size) for name, total in sums.items()},
        token_state_share=share / num_steps,
        token_state_share_after=share_after / num_steps,
        num_steps=num_steps,
        num_preemptions=scheduler.stats.num_preemptions,
        seconds=time.perf_counter() - begin,
    )


def _sampling() -> _core.SamplingParams:
    return _core.SamplingParams(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)


def table(runs: Sequence[Run]) -> str:
    """For people."""
    lines = ["| block size | token states | reserved | internal waste | free | saved by sharing | preempted | steps |"]
    lines.append("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for one in runs:
        means = one.means
        in_use = 1 - means["free"]
        shares = [one.token_state_share, means["reserved"] / in_use, means["internal_waste"] / in_use]
        shares += [means["free"], means["saved"] / in_use]
        cells = [f"{value:.2%}" for value in shares]
        lines.append(f"| {one.block_size} | {' | '.join(cells)} | {one.num_preemptions} | {one.num_steps} |")
    return "\n".join(lines)


def plot(runs: Sequence[Run], output: Path) -> bool:
    """Of the slots in use, what is no token, by block size. False: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [str(one.block_size) for one in runs]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    bottom = [0.0] * len(runs)
    for figure_name, label in (("internal_waste", "internal waste"), ("reserved", "reserved for the step under way")):
        heights = [100 * one.means[figure_name] / (1 - one.means["free"]) for one in runs]
        axes.bar(names, heights, bottom=bottom, label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.axhline(100 - 96.3, linestyle="--", color="0.4", linewidth=1, label="the paper, block size 16: 3.7 %")
    axes.set(
        title="slots of the KV pool in use that hold no token, ShareGPT-like load under pressure",
        xlabel="block size, tokens",
        ylabel="% of the slots in use",
    )
    axes.legend()
    figure.savefig(output / "kv_split.png", dpi=120)
    pyplot.close(figure)
    return True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace-dir", type=Path, help=f"where {TRACE}.csv.gz lies")
    parser.add_argument("--requests", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=list(BLOCK_SIZES), metavar="N")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    args = parser.parse_args()
    if args.requests < 1 or not all(1 <= size <= 256 for size in args.block_sizes):
        parser.error("--requests must be at least 1, and --block-sizes from 1 to 256")
    return args


def main() -> None:
    args = arguments()
    lengths = None if args.trace_dir is None else read_lengths(args.trace_dir / f"{TRACE}.csv.gz")
    requests = load(args.requests, lengths)
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    runs: list[Run] = []
    for block_size in args.block_sizes:
        progress = None if bar is None else partial(bar, f"block size {block_size}")
        runs.append(run(requests, block_size, progress=progress))
        if bar is not None:
            bar.clear()
        print(f"block size {block_size}: {runs[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    print(table(runs))
    args.output.mkdir(parents=True, exist_ok=True)
    figures = {"trace": TRACE if lengths else "made up", "num_requests": args.requests, "num_slots": NUM_SLOTS}
    report = {**figures, "runs": [dataclasses.asdict(one) for one in runs]}
    (args.output / "kv_split.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not plot(runs, args.output):
        print("no plot: matplotlib is not installed (pip install 'fastpaged[bench]')", file=sys.stderr)
    wrong = [one for one in runs if one.block_size == 16 and one.token_state_share < LEAST_SHARE]
    for one in wrong:
        print(f"WRONG: {one.token_state_share:.2%} of the slots in use hold tokens, less than {LEAST_SHARE:.1%}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
