"""`fastpaged bench kernels`: each op of a step beside what this machine allows, by batch size."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged.cli.bench_output import check_writable
from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, load_llm
from fastpaged.cli.kernel_table import kernel_table
from fastpaged.cli.messages import Messages
from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastpaged.cli.step_sizes import StepSizes
    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.llm import LLM

_MOST = 1 << 20
# Engine arguments that the sizes of the steps give.
_OF_THE_SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_blocks")


def add_parser(kinds: argparse._SubParsersAction[Any]) -> None:
    """Adds the measurement to the parser of `fastpaged bench`."""
    parser = kinds.add_parser(
        "kernels",
        help="each op's share of what this machine allows",
        description="Run decode steps of several batch sizes and a chunk of a prompt, and hold each op against the "
        "limits of this machine, measured before and after each kind of step.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_kernels)
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--batch", metavar="N,N,...", default="1,8,32,64", help="sequences in a decode step (default: %(default)s)"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", default=512, help="tokens before each of them (default: %(default)s)"
    )
    parser.add_argument(
        "--prefill", type=int, metavar="N", default=512, help="tokens of the prompt's chunk (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, metavar="N", default=11, help="of each kind (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="the same as --num-threads")
    parser.add_argument("--json", type=Path, metavar="FILE", default=None, help="write the figures to this file")
    add_engine_options(parser)
    parser.set_defaults(packed_cache=False)  # whose writer would use memory while the machine is measured


def run_kernels(args: argparse.Namespace) -> int:
    """Prints one table: a row an op, two columns a kind of step."""
    from fastpaged.cli.step_sizes import StepSizes

    batches = _batches(args.batch)
    for name in ("context", "prefill", "steps"):
        if not 1 <= getattr(args, name) <= _MOST:
            raise InvalidRequestError(f"--{name} must lie in [1, {_MOST}], got {getattr(args, name)}")
    if args.json is not None:
        check_writable(args.json)
    sizes = StepSizes(batches, args.context, args.prefill, args.steps)
    _take_threads(args)
    _make_room(args, sizes)
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    with Messages(bar), _loaded(args, bar) as llm:
        figures = _measured(llm.engine, args, sizes, bar)
    print(kernel_table(figures))
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def _batches(text: str) -> tuple[int, ...]:
    try:
        batches = tuple(int(word) for word in text.split(","))
    except ValueError:
        batches = ()
    if not batches or not all(1 <= batch <= _MOST for batch in batches):
        raise InvalidRequestError(f"--batch must be numbers in [1, {_MOST}] with commas between, got {text!r}")
    return batches


def _take_threads(args: argparse.Namespace) -> None:
    """--threads is another name for --num-threads."""
    given = vars(args)
    if "threads" not in given:
        return
    if "num_threads" in given:
        raise InvalidRequestError(
            f"--threads and --num-threads are the same: give one, got {args.threads} and {args.num_threads}"
        )
    args.num_threads = args.threads


def _make_room(args: argparse.Namespace, sizes: StepSizes) -> None:
    """Engine arguments that the steps need, where none were given."""
    given = vars(args)
    args.max_num_seqs = given.get("max_num_seqs", max(sizes.batches))
    args.max_num_batched_tokens = given.get("max_num_batched_tokens", sizes.least_budget)
    args.max_model_len = given.get("max_model_len", sizes.num_tokens)
    if "kv_cache_memory_bytes" not in given:
        block_size = given.get("block_size", EngineConfig.block_size)
        args.num_blocks = given.get("num_blocks", sizes.num_blocks(block_size))


@contextlib.contextmanager
def _loaded(args: argparse.Namespace, bar: ProgressBar | None) -> Iterator[LLM]:
    """What does not fit was asked for by the sizes of the steps."""
    with contextlib.ExitStack() as stack:
        try:
            llm = stack.enter_context(load_llm(args, bar))
        except InvalidRequestError as error:
            if not any(name in str(error) for name in _OF_THE_SIZES):
                raise
            raise InvalidRequestError(
                f"--batch {args.batch}, --context {args.context} and --prefill {args.prefill} must be steps that this "
                f"engine and machine have room for: {error}"
            ) from None
        yield llm


def _measured(engine: LLMEngine, args: argparse.Namespace, sizes: StepSizes, bar: ProgressBar | None) -> dict[str, Any]:
    from fastpaged.cli.kernel_steps import KernelSteps
    from fastpaged.cli.machine_limits import better_limits, changes, limits_as_dict, limits_of_engine

    steps = KernelSteps(engine, sizes)
    names = [*(f"batch {batch}" for batch in sizes.batches), f"prefill {sizes.prefill}"]
    kinds: dict[str, Any] = {}
    warnings: list[str] = []
    before = limits_of_engine(engine, bar)
    for index, name in enumerate(names):
        if bar is not None:
            bar(name, index, len(names))
        kind = steps.decode(sizes.batches[index]) if index < len(sizes.batches) else steps.prefill(sizes.prefill)
        after = limits_of_engine(engine, bar)
        limits = better_limits(before, after)
        warnings += [f"{name}: {text}" for text in changes(before, after)]
        kinds[name] = {**kind.held_against(limits), "limits": limits_as_dict(limits)}
        before = after
    return {
        "model_id": args.model,
        "isa": engine.worker.device.isa,
        "dtype": engine.worker.dtype,
        "kv_cache_dtype": engine.worker.kv_memory.dtype,
        "num_threads": engine.worker.device.num_threads,
        "context": sizes.context,
        "steps": kinds,
        "warnings": warnings,
    }
