"""The options of every command that runs an engine, each a field of the same name of EngineConfig: absent, the field's
default holds."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from fastpaged.config import DTYPES, KV_DTYPES, LOAD_FORMATS, PREEMPTION_MODES, SCHEDULING_POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastpaged.llm import LLM
    from fastpaged.progress import ProgressBar
    from fastpaged.worker.worker import Worker

MODEL_HELP = "a .gguf file, a folder with a model, or its name on the hub (org/name)"
ENGINE_FIELDS = (
    "tokenizer", "revision", "download_dir", "load_format", "dtype", "max_model_len", "block_size", "num_blocks",
    "kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens", "swap_space", "preemption_mode", "num_threads",
    "resume_grace_steps", "prefill_share", "scheduling_policy", "ageing_steps", "queue_timeout",
    "max_num_queued_requests", "max_num_queued_tokens", "kv_cache_dtype",
    "packed_cache", "async_scheduling", "enable_prefix_caching", "pinned_prefix_budget", "record", "fault_trace_dir",
    "isa",
)  # fmt: skip
_SECONDS_IN_SILENCE = 1.0


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """REQUIRES: the parser leaves out what is absent (argument_default=argparse.SUPPRESS)."""
    group = parser.add_argument_group("engine")
    group.add_argument("--tokenizer", metavar="MODEL", help="take the tokenizer of another model")
    group.add_argument("--revision", metavar="REV", help="a branch, tag or commit of a model on the hub")
    group.add_argument("--download-dir", metavar="DIR", help="where models of the hub are kept")
    group.add_argument("--load-format", choices=LOAD_FORMATS, help="dummy: random weights (default: auto)")
    group.add_argument("--dtype", choices=DTYPES, help="of weights and activations (default: auto)")
    group.add_argument(
        "--kv-cache-dtype",
        choices=(*KV_DTYPES, "fp8"),
        help="of keys and values: of 8 bits about half the bytes (fp8: fp8_e4m3; default: auto, that of --dtype)",
    )
    group.add_argument(
        "--max-model-len", type=int, metavar="N", help="context limit (default: the model's); -1: what memory holds"
    )
    group.add_argument("--block-size", type=int, metavar="N", help="tokens in a KV block")
    group.add_argument("--num-blocks", type=int, metavar="N", help="KV blocks (default: sized from free memory)")
    group.add_argument("--kv-cache-memory-bytes", type=int, metavar="N", help="the same in bytes")
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences in one step")
    group.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens in one step")
    group.add_argument(
        "--swap-space",
        type=float,
        metavar="GIB",
        help="host memory for the KV blocks of swapped requests, committed when used (default: up to 4)",
    )
    group.add_argument(
        "--preemption-mode",
        choices=PREEMPTION_MODES,
        help="what to do with a request when blocks run out: compute it again, or swap it to host memory; auto, the "
        "default: what costs less, as measured; by_branches: swap if it has several sequences",
    )
    group.add_argument(
        "--resume-grace-steps",
        type=int,
        metavar="N",
        help="steps for which a request that was preempted keeps its blocks when it is back (default: 8)",
    )
    _add_queue_options(parser.add_argument_group("queue"))
    group.add_argument("--num-threads", type=int, metavar="N", help="threads (default: the CPUs this process may use)")
    group.add_argument(
        "--no-packed-cache",
        dest="packed_cache",
        action="store_false",
        help="neither use nor keep packed weights on disk; see `fastpaged cache`",
    )
    group.add_argument(
        "--async-scheduling",
        action="store_true",
        help="make a step's outputs while the next one is computed: faster where a core is to spare for that",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        help="find the KV blocks of a prompt that begins as an earlier one, instead of computing them (default: do)",
    )
    group.add_argument(
        "--pinned-prefix-budget",
        type=float,
        metavar="X",
        help="share of the KV pool that pinned prefixes may hold (default: 0.25)",
    )
    group.add_argument(
        "--record", metavar="FILE", help="write down what the scheduler is told and decides; see `fastpaged replay`"
    )
    group.add_argument(
        "--fault-trace-dir", metavar="DIR", help="where steps that fail are written down (default: a temporary folder)"
    )
    group.add_argument("--isa", metavar="NAME", help="instruction set; see `fastpaged collect-env`")


def _add_queue_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--scheduling-policy",
        choices=SCHEDULING_POLICIES,
        help="whose turn it is: in order of arrival, or of the requests' priorities (default: fcfs)",
    )
    group.add_argument(
        "--ageing-steps",
        type=int,
        metavar="N",
        help="with priorities: steps after which who has waited goes first; 0: never (default: 512)",
    )
    group.add_argument(
        "--prefill-share",
        type=int,
        metavar="N",
        help="most tokens of unfinished prompts in a step that others have a part in; 0: no limit (default: 512)",
    )
    group.add_argument(
        "--queue-timeout", type=float, metavar="S", help="seconds after which a request that never began ends"
    )
    group.add_argument("--max-num-queued-requests", type=int, metavar="N", help="most requests that wait to begin")
    group.add_argument("--max-num-queued-tokens", type=int, metavar="N", help="most tokens of their prompts")


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    given = vars(args)
    return {name: given[name] for name in ENGINE_FIELDS if name in given}


@contextlib.contextmanager
def load_llm(args: argparse.Namespace, bar: ProgressBar | None) -> Iterator[LLM]:
    """The engine of `args.model`, closed at the end; the bar shows how far loading is, and is gone after it.

    Who waits for packed weights to be written is told so; Ctrl-C ends that alone, and what was asked for is done. One
    that came before waits for nothing.
    """
    from fastpaged.llm import LLM  # a good part of a second, which --help should not wait for

    try:
        llm = LLM(args.model, progress=bar, **engine_arguments(args))
    finally:
        if bar is not None:
            bar.clear()
    worker = llm.engine.worker
    try:
        yield llm
    except KeyboardInterrupt:
        worker.keep_no_weights()
        raise
    finally:
        try:
            with _told_of_writing(worker):
                llm.close()
        except KeyboardInterrupt:
            worker.keep_no_weights()
            llm.close()
            worker.close()  # which the line above has lost sight of, where the first close() had begun


@contextlib.contextmanager
def _told_of_writing(worker: Worker) -> Iterator[None]:
    """One line on stderr: at once on a terminal, elsewhere where it takes long."""
    if not worker.is_keeping_weights:
        yield
        return
    text = "fastpaged: keeping packed weights for the next start; Ctrl-C skips that"
    timer = threading.Timer(_SECONDS_IN_SILENCE, print, [text], {"file": sys.stderr})
    timer.daemon = True
    if sys.stderr.isatty():
        print(text, file=sys.stderr)
    else:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
