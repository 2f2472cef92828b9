"""`fastpaged bench`: replays a workload on this machine and says how fast it went."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged.cli import bench_kernels, bench_machine, bench_serve
from fastpaged.cli.bench_output import check_writable
from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, load_llm
from fastpaged.cli.messages import Messages
from fastpaged.cli.profile_table import profile_table
from fastpaged.cli.workload import WorkloadRequest, read_workload
from fastpaged.cli.workload_run import Replay, replay
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.engine.step_profile import StepProfile

EXIT_REQUEST_FAILED = 1
_PERCENTILES = (10, 25, 50, 75, 90, 99)
_WARM_UP_TOKENS = 8  # of each of the first requests, so that memory is committed and threads are awake
_WARM_UP_REQUESTS = 16


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser("bench", help="measure this machine", description="Measure fastpaged on this machine.")
    kinds = parser.add_subparsers(title="measurements", required=True, metavar="WHAT")
    throughput = _add_measurement(
        kinds,
        "throughput",
        run_throughput,
        "tokens per second over a workload",
        "Replay a workload, all its requests at once: greedy, end-of-sequence ignored.",
    )
    throughput.add_argument("--repeat", type=int, metavar="N", default=1, help="runs; the median one is reported")
    latency = _add_measurement(
        kinds,
        "latency",
        run_latency,
        "seconds to answer a workload",
        "Replay a workload again and again, and report how long one run takes.",
    )
    latency.add_argument("--num-iters", type=int, metavar="N", default=10, help="runs (default: %(default)s)")
    bench_serve.add_parser(kinds)
    bench_machine.add_parser(kinds)
    bench_kernels.add_parser(kinds)


def _add_measurement(
    kinds: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    """With the options that every measurement has."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        name, help=summary, description=description, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--workload",
        required=True,
        type=Path,
        metavar="FILE",
        help='JSON: [{"prompt": [token ids], "out": number of tokens}, ...]',
    )
    parser.add_argument("--json", type=Path, metavar="OUT", default=None, help="write the figures to this file")
    parser.add_argument("--profile", action="store_true", default=False, help="say where the time of a step goes")
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="FILE",
        default=None,
        help="with --profile: hold it against these rates, of `bench machine --json`, and measure none",
    )
    add_engine_options(parser)
    parser.set_defaults(packed_cache=False)  # whose writer would use memory while something is measured
    return parser


def run_throughput(args: argparse.Namespace) -> int:
    """The median run by elapsed time. Exit status 1 if a request failed or was cut short."""
    with _engine(args, args.repeat, "--repeat") as (engine, workload, profile):
        runs = [replay(engine, workload, _progress(index, args.repeat)) for index in range(args.repeat)]
        figures = _run_figures(args.model, engine, _median(runs), len(workload))
        figures["elapsed_times"] = [run.elapsed_time for run in runs]
    return _report(args, figures, profile, runs)


def run_latency(args: argparse.Namespace) -> int:
    """Latencies of all runs, all else of the median one. Exit status 1 if a request failed or was cut short."""
    with _engine(args, args.num_iters, "--num-iters") as (engine, workload, profile):
        runs = [replay(engine, workload, _progress(index, args.num_iters)) for index in range(args.num_iters)]
        latencies = [run.elapsed_time for run in runs]
        figures = {
            "avg_latency": statistics.fmean(latencies),
            "latencies": latencies,
            "percentiles": {str(percent): percentile(latencies, percent) for percent in _PERCENTILES},
            **_run_figures(args.model, engine, _median(runs), len(workload)),
        }
    return _report(args, figures, profile, runs)


def _median(runs: Sequence[Replay]) -> Replay:
    return sorted(runs, key=lambda run: run.elapsed_time)[(len(runs) - 1) // 2]


@contextlib.contextmanager
def _engine(
    args: argparse.Namespace, runs: int, flag: str
) -> Iterator[tuple[LLMEngine, list[WorkloadRequest], StepProfile | None]]:
    """An engine that has warmed up on other tokens than the workload's."""
    if runs < 1:
        raise InvalidRequestError(f"{flag} must be at least 1, got {runs}")
    if args.machine is not None and not args.profile:
        raise InvalidRequestError(f"--machine must be given with --profile, got {args.machine} without it")
    workload = read_workload(args.workload)
    if args.json is not None:
        check_writable(args.json)
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    with Messages(bar), load_llm(args, bar) as llm:
        engine = llm.engine
        replay(engine, _warm_up(workload, engine.worker.model_config.vocab_size))
        profile = _profile(engine, args.machine, bar) if args.profile else None
        yield engine, workload, profile
        if profile is not None and args.machine is None:
            _measure_again(engine, profile, bar)


def _profile(engine: LLMEngine, machine: Path | None, bar: ProgressBar | None) -> StepProfile:
    """Attached, with the limits in that file, or else those of this machine as they are now."""
    from fastpaged.cli import machine_limits
    from fastpaged.cli.machine_file import limits_of_file
    from fastpaged.engine.step_profile import StepProfile

    if machine is not None:
        limits = limits_of_file(machine, engine.worker.device, engine.worker.dtype)
    else:
        limits = machine_limits.limits_of_engine(engine, bar)
    profile = StepProfile(limits)
    profile.attach(engine)
    return profile


def _measure_again(engine: LLMEngine, profile: StepProfile, bar: ProgressBar | None) -> None:
    """The limits hold as they were measured before; a machine that has others by now is worth a warning."""
    from fastpaged.cli import machine_limits

    assert profile.limits is not None
    profile.warnings = machine_limits.changes(profile.limits, machine_limits.limits_of_engine(engine, bar))


def _warm_up(workload: Sequence[WorkloadRequest], vocab_size: int) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(
            [(token_id * 7 + 11) % vocab_size for token_id in r.prompt], min(r.num_output_tokens, _WARM_UP_TOKENS)
        )
        for r in workload[:_WARM_UP_REQUESTS]
    ]


def _progress(index: int, count: int) -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None
    bar = ProgressBar(sys.stderr)
    phase = "replaying" if count == 1 else f"run {index + 1} of {count}"

    def show(done: int, total: int) -> None:
        bar(phase, done, total)
        if done == total:
            bar.clear()

    return show


def _run_figures(model: str, engine: LLMEngine, run: Replay, num_requests: int) -> dict[str, Any]:
    """Of one run: the fields by the names that benchmarks of serving engines give them, then this engine's own."""
    num_tokens = run.num_input_tokens + run.num_output_tokens
    figures: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "model_id": model,
        "isa": engine.worker.device.isa,
        "num_threads": engine.worker.device.num_threads,
        "elapsed_time": run.elapsed_time,
        "num_requests": num_requests,
        "failed": run.num_failed,
        "cut_short": run.num_cut,
        "total_input_tokens": run.num_input_tokens,
        "total_output_tokens": run.num_output_tokens,
        "total_num_tokens": num_tokens,
        "requests_per_second": num_requests / run.elapsed_time,
        "tokens_per_second": num_tokens / run.elapsed_time,
        "output_throughput": run.num_output_tokens / run.elapsed_time,
    }
    for name, seconds in (("ttft", run.ttfts), ("tpot", run.tpots)):
        if seconds:
            figures[f"mean_{name}_ms"] = 1e3 * statistics.fmean(seconds)
            figures[f"median_{name}_ms"] = 1e3 * statistics.median(seconds)
            figures[f"p99_{name}_ms"] = 1e3 * percentile(seconds, 99)
    figures["kv_cache"] = {
        "block_size": engine.config.block_size,
        "num_blocks": engine.scheduler.num_blocks,
        "max_blocks_in_use": run.max_blocks_in_use,
        "mean_blocks_in_use": run.mean_blocks_in_use,
        "num_host_blocks": engine.scheduler.num_host_blocks,
    }
    figures["prefix_cache"] = {
        "enabled": engine.config.enable_prefix_caching,
        "num_cached_tokens": run.scheduler["num_prefix_tokens_found"],
        "hit_rate": run.scheduler["num_prefix_tokens_found"] / run.num_input_tokens,
    }
    figures["scheduler"] = {
        "num_steps": run.num_steps,
        "max_num_running": run.max_num_running,
        "mean_num_running": run.mean_num_running,
        **run.scheduler,
    }
    return figures


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear between the two nearest ranks. REQUIRES: values is not empty."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _report(
    args: argparse.Namespace, figures: dict[str, Any], profile: StepProfile | None, runs: Sequence[Replay]
) -> int:
    if profile is not None:
        _add_profile(figures, profile, runs)
    print("\n".join(_rows(figures)))
    if profile is not None:
        print(profile_table(figures["profile"]))
    sys.stdout.flush()
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    num_failed, num_cut = sum(run.num_failed for run in runs), sum(run.num_cut for run in runs)
    if num_failed:
        print(f"fastpaged: error: {num_failed} requests failed", file=sys.stderr)
    if num_cut:
        print(f"fastpaged: error: {num_cut} answers are too short, for the KV pool was full", file=sys.stderr)
    return EXIT_REQUEST_FAILED if num_failed or num_cut else 0


def _add_profile(figures: dict[str, Any], profile: StepProfile, runs: Sequence[Replay]) -> None:
    """And what the machine's limits allow: weights read once a step and each sequence's K and V, or the arithmetic of
    the step if that is slower; limit_time is that of a run."""
    from fastpaged.cli.machine_limits import limits_as_dict

    figures["profile"] = {**profile.as_dict(), "warnings": profile.warnings}
    limit = figures["profile"]["limit_seconds"]
    figures["limit_time"] = limit / len(runs)
    figures["share_of_limit"] = limit / sum(run.elapsed_time for run in runs)
    if profile.limits is not None:
        figures["profile"]["machine"] = limits_as_dict(profile.limits)


_TITLES = {
    "num_requests": "Requests",
    "total_input_tokens": "Input tokens",
    "total_output_tokens": "Generated tokens",
    "elapsed_time": "Duration (s)",
    "requests_per_second": "Request throughput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "tokens_per_second": "Total token throughput (tok/s)",
    "mean_ttft_ms": "Mean TTFT (ms)",
    "median_ttft_ms": "Median TTFT (ms)",
    "p99_ttft_ms": "P99 TTFT (ms)",
    "mean_tpot_ms": "Mean TPOT (ms)",
    "median_tpot_ms": "Median TPOT (ms)",
    "p99_tpot_ms": "P99 TPOT (ms)",
    "avg_latency": "Mean latency (s)",
}


def _rows(figures: dict[str, Any]) -> list[str]:
    rows = [(title, figures[name]) for name, title in _TITLES.items() if name in figures]
    rows += [(f"P{percent} latency (s)", value) for percent, value in figures.get("percentiles", {}).items()]
    if "scheduler" in figures:
        scheduler, kv_cache = figures["scheduler"], figures["kv_cache"]
        rows += [
            ("Steps", scheduler["num_steps"]),
            ("Mean requests in a step", scheduler["mean_num_running"]),
            ("KV blocks in use, peak", f"{kv_cache['max_blocks_in_use']} of {kv_cache['num_blocks']}"),
            ("Prompt tokens found in the cache", _cached(figures)),
            ("Preemptions", scheduler["num_preemptions"]),
        ]
    if "limit_time" in figures:
        rows += [
            ("Duration at the limit (s)", figures["limit_time"]),
            ("Reached", f"{100 * figures['share_of_limit']:.0f} % of what this machine allows"),
        ]
    return [f"{title + ':':<34}{_number(value)}" for title, value in rows]


def _cached(figures: dict[str, Any]) -> str:
    cache = figures["prefix_cache"]
    return f"{cache['num_cached_tokens']} ({100 * cache['hit_rate']:.1f} %)" if cache["enabled"] else "none (it is off)"


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
