"""`fastpaged bench machine`: how fast this machine reads and multiplies, whatever runs on it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged.cli.bench_output import check_writable
from fastpaged.cli.engine_options import MODEL_HELP
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_DEFAULT_BYTES = 512 << 20
_LEAST_BYTES = 1 << 20
_CACHES_TO_MISS = 4  # a buffer of fewer shared caches stays in one, at least in part
_BAR_WIDTH = 30


def add_parser(kinds: argparse._SubParsersAction[Any]) -> None:
    """Adds the measurement to the parser of `fastpaged bench`."""
    parser = kinds.add_parser(
        "machine",
        help="how fast this machine reads and multiplies",
        description="Measure how fast this machine reads memory and caches, and multiplies matrices, by threads and "
        "instruction set: the limits of everything that runs on it.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_machine)
    parser.add_argument(
        "--threads", type=int, metavar="N", help="most threads (default: the CPUs this process may use)"
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--bytes", type=int, metavar="SIZE", help="memory to read (default: 512 MiB)")
    sizes.add_argument(
        "--model", metavar="MODEL", help=f"as much as its weights, at most half of the free memory: {MODEL_HELP}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")


def run_machine(args: argparse.Namespace) -> int:
    """Prints a line for each rate, as it is known."""
    from fastpaged import _core

    num_threads = _core.available_cpus() if args.threads is None else args.threads
    if not 1 <= num_threads <= 1024:
        raise InvalidRequestError(f"--threads must lie in [1, 1024], got {num_threads}")
    num_bytes = _buffer_bytes(args)
    if args.json is not None:
        check_writable(args.json)
    rows = list(_shown(_rates(thread_counts(num_threads), num_bytes)))
    if args.json is not None:
        figures = {"num_threads": num_threads, "bytes": num_bytes, "rates": rows}
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def _buffer_bytes(args: argparse.Namespace) -> int:
    """Those asked for, where this machine has them: the buffer is committed."""
    from fastpaged.worker.free_memory import free_memory_bytes

    free = free_memory_bytes()
    if args.model is not None:
        return min(bytes_of_model(args.model), max(free // 2, _LEAST_BYTES))
    num_bytes: int = _DEFAULT_BYTES if args.bytes is None else args.bytes
    if not _LEAST_BYTES <= num_bytes <= free:
        raise InvalidRequestError(f"--bytes must lie in [{_LEAST_BYTES}, {free}], the free memory, got {num_bytes}")
    return num_bytes


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def bytes_of_model(name: str) -> int:
    """Of its weights in the dtype that is computed with, and at least 1 MiB."""
    from fastpaged.config.dtypes import compute_dtype
    from fastpaged.weights.checkpoint import open_checkpoint, read_config
    from fastpaged.weights.loader import weight_bytes
    from fastpaged.weights.local_model import local_model

    place = local_model(name, without_weights=True)
    if (place / "config.json").is_file():
        config = read_config(place, {})
    else:
        checkpoint = open_checkpoint(place)
        config = checkpoint.config
        checkpoint.close()
    return max(weight_bytes(config, compute_dtype("auto")), _LEAST_BYTES)


@dataclass(frozen=True)
class _Rate:
    """One to be measured: the section it is shown in, what JSON says of it, and how."""

    title: str
    unit: str
    fields: dict[str, Any]
    measure: Callable[[], float]


def _rates(counts: list[int], num_bytes: int) -> list[_Rate]:
    """In the order of the table."""
    return [*_reads(counts, num_bytes), *_products(counts)]


def _reads(counts: list[int], num_bytes: int) -> Iterator[_Rate]:
    import numpy as np

    from fastpaged import _core
    from fastpaged.cli import machine_limits as limits

    isa = _core.default_isa()
    buffer = np.ones(num_bytes, np.uint8)
    title = f"Reading {num_bytes / (1 << 20):.0f} MiB of memory"
    cache = limits.shared_cache_bytes()
    if num_bytes < _CACHES_TO_MISS * cache:
        title = (
            f"Reading {num_bytes / (1 << 20):.0f} MiB that stay in the shared cache (L3: {cache / (1 << 20):.0f} MiB), "
            "at least in part: no rate of memory"
        )
    for count in counts:
        device = _core.CpuDevice(isa, count)
        fields = {"what": "read", "from": "memory", "bytes": num_bytes, "threads": count}
        yield _Rate(title, "GB/s", fields, partial(limits.memory_rate, device, buffer))
    for title, place, piece_bytes in (
        ("Reading from the shared cache (L3)", "shared cache", limits.shared_piece_bytes),
        ("Reading from each thread's cache (L2)", "own cache", lambda _: limits.own_cache_bytes() // 2),
    ):
        for count in counts:
            device, piece = _core.CpuDevice(isa, count), piece_bytes(count)
            fields = {"what": "read", "from": place, "bytes": piece * count, "threads": count}
            yield _Rate(title, "GB/s", fields, partial(limits.cache_rate, device, piece))


def _products(counts: list[int]) -> Iterator[_Rate]:
    from fastpaged import _core
    from fastpaged.cli import machine_limits as limits

    places = (("registers", "in registers", 0), ("own cache", "weights from L2", limits.own_cache_bytes() // 2))
    for isa in _core.supported_isas():
        for dtype in _dtypes(isa):
            for place, words, num_bytes in places:
                for count in counts:
                    fields = {"what": "multiply", "isa": isa, "dtype": dtype, "from": place, "threads": count}
                    how = partial(limits.matrix_rate, _core.CpuDevice(isa, count), dtype, num_bytes)
                    yield _Rate(f"Multiplying {dtype} on {isa}, {words}", "GFLOP/s", fields, how)


def _dtypes(isa: str) -> list[str]:
    from fastpaged import _core

    if isa == "amx_emulated":  # it shows what an instruction does, not how fast it is
        return []
    return ["bfloat16"] if isa == "amx" else _core.matrix_dtypes(isa)  # float32 is multiplied by avx512 there


def _shown(rates: list[_Rate]) -> Iterator[dict[str, Any]]:
    """Measures one after the other; a section is printed when it is whole, its bars against its best."""
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    section: list[dict[str, Any]] = []
    for index, rate in enumerate(rates):
        if bar is not None:
            bar("measuring", index, len(rates))
        section.append({**rate.fields, "rate": rate.measure(), "unit": rate.unit.removeprefix("G")})
        yield section[-1]
        if index + 1 == len(rates) or rates[index + 1].title != rate.title:
            if bar is not None:
                bar.clear()
            print(_section(rate.title, section), flush=True)
            section = []


def _section(title: str, rows: list[dict[str, Any]]) -> str:
    best = max(row["rate"] for row in rows)
    lines = [title]
    for row in rows:
        threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
        drawn = "#" * round(_BAR_WIDTH * row["rate"] / best)
        lines.append(f"  {threads:<14}{row['rate'] / 1e9:>9.1f} G{row['unit']:<8}{drawn}")
    return "\n".join(lines)
