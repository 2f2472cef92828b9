"""`fastpaged replay`: a recording, checked against the scheduler that is here, and what other settings would do."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastpaged.simulator.figures import Figures
    from fastpaged.simulator.prediction import Changes
    from fastpaged.simulator.recording import Recording
    from fastpaged.simulator.replay import ReplayResult
    from fastpaged.simulator.step_times import StepTimes

EXIT_DIFFERENCES = 1
_MAX_BLOCKS = 2**22  # simulator.header's, which takes the core to read; tests hold them together
_MAX_BLOCK_SIZE = 256
_CHANGES = ("blocks", "host_blocks", "block_size", "policy", "preemption_mode")


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "replay",
        help="replay what an engine recorded, and predict other settings",
        description="Feed a recording (--record FILE) to the scheduler, with no model, and check that it decides what "
        "it decided then: exit status 0, or 1 with the first differences. With other settings, predict how the same "
        "requests would have fared, each step taking what the recorded steps say it takes.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("file", metavar="FILE", help="what --record wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    group = parser.add_argument_group("predict")
    group.add_argument("--blocks", type=_number(1, _MAX_BLOCKS), metavar="N", help="KV blocks")
    group.add_argument("--host-blocks", type=_number(0, _MAX_BLOCKS), metavar="N", help="KV blocks of host memory")
    group.add_argument(
        "--block-size",
        type=_number(1, _MAX_BLOCK_SIZE),
        metavar="N",
        help="tokens in a KV block (pools keep their bytes, if not given)",
    )
    group.add_argument(
        "--policy", choices=("fcfs", "priority", "paper"), help="whose turn it is; paper: section 4.5 of the paper"
    )
    group.add_argument(
        "--preemption-mode",
        choices=("auto", "recompute", "swap", "by_branches"),
        help="what becomes of a request that has to go",
    )


def run(args: argparse.Namespace) -> int:
    """Prints, and returns the exit status."""
    from fastpaged.simulator.prediction import Changes
    from fastpaged.simulator.recording import read_recording
    from fastpaged.simulator.replay import replay_recording

    changes = Changes(**{name: getattr(args, name) for name in _CHANGES})
    recording = read_recording(args.file)
    result = replay_recording(recording)
    if result.num_differences > 0 or changes == Changes():
        _print_check(recording, result, as_json=args.json)
        return EXIT_DIFFERENCES if result.num_differences > 0 else 0
    _predict(recording, result, changes, as_json=args.json)
    return 0


def _print_check(recording: Recording, result: ReplayResult, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_check(result)))
        return
    print(
        f"{recording.header.model}, fastpaged {recording.header.version}: {result.num_steps} steps, "
        f"{result.num_decisions} decisions, {result.num_differences} of them different"
    )
    if result.is_cut:
        print("the last line is not whole, and was left out")
    for difference in result.differences:
        print(difference)


def _check(result: ReplayResult) -> dict[str, Any]:
    return {
        "num_steps": result.num_steps,
        "num_decisions": result.num_decisions,
        "num_differences": result.num_differences,
        "differences": [dataclasses.asdict(difference) for difference in result.differences],
        "is_cut": result.is_cut,
        "stats": result.stats,
    }


def _predict(recording: Recording, result: ReplayResult, changes: Changes, *, as_json: bool) -> None:
    from fastpaged.simulator.history import history_of
    from fastpaged.simulator.prediction import predict

    history = history_of(recording)
    step_times = history.step_times()
    predicted = predict(recording.header, history, step_times, changes)
    if as_json:
        figures = {
            "recorded": dataclasses.asdict(history.figures),
            "predicted": dataclasses.asdict(predicted),
            "changes": {name: value for name, value in dataclasses.asdict(changes).items() if value is not None},
            "step_times": dataclasses.asdict(step_times),
        }
        print(json.dumps(_check(result) | figures))
        return
    print(f"{'':<28}{'recorded':>16}{'predicted':>16}")
    for (name, before), (_, after) in zip(_rows(history.figures), _rows(predicted), strict=True):
        print(f"{name:<28}{before:>16}{after:>16}")
    print(_fit(step_times))
    if predicted.num_pins_left_out:
        print(
            f"pins left out of the prediction, for they fill no block of that size, or more than may be pinned: "
            f"{predicted.num_pins_left_out}"
        )


def _fit(times: StepTimes) -> str:
    from fastpaged.simulator.step_times import PARTS

    parts = ", ".join(f"{1e6 * seconds:.3g} per {name}" for name, seconds in zip(PARTS, times.seconds, strict=True))
    return (
        f"a step's time, in us: {parts}; over {times.num_steps} steps off by {times.residual:.1%} of the mean step, "
        f"by {times.total_error:+.1%} of their sum"
    )


def _rows(figures: Figures) -> Iterator[tuple[str, str]]:
    from fastpaged.simulator.figures import PERCENTILES

    yield "requests", str(figures.num_requests)
    yield "steps", str(figures.num_steps)
    yield "makespan", f"{figures.makespan:.3f} s"
    yield "output tokens", str(figures.num_output_tokens)
    yield "throughput", f"{figures.throughput:.1f} tok/s"
    for name, times in (("TTFT", figures.ttft), ("TPOT", figures.tpot), ("queue time", figures.queue_time)):
        for percentile, seconds in zip(PERCENTILES, times or [None] * len(PERCENTILES), strict=True):
            yield f"{name} p{percentile}", "-" if seconds is None else f"{1e3 * seconds:.2f} ms"
    yield "preemptions", str(figures.num_preemptions)
    yield "tokens recomputed", str(figures.num_tokens_recomputed)
    yield "bytes swapped", str(figures.num_bytes_swapped)
    yield "prefix cache hit rate", f"{figures.hit_rate:.1%}"
    yield "KV blocks in use", f"{figures.kv_use:.1%}"


def _number(least: int, greatest: int) -> Callable[[str], int]:
    """Of an option."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= greatest:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {greatest}, got {text!r:.40}")
        return value

    return number
