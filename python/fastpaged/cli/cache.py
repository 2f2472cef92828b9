"""`fastpaged cache`: the packed weights that are kept on disk for the next start, and how to be rid of them."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_GIB = 2**30


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "cache",
        help="show or clear the packed weights on disk",
        description="Show the packed weights that are kept on disk, so that the next start maps them: in "
        "$FASTPAGED_CACHE, or the user's cache folder. An empty FASTPAGED_CACHE keeps none; FASTPAGED_CACHE_GIB limits "
        "all together (default: 20).",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--clear",
        action="store_true",
        help="remove them all, and no other file; a running engine keeps what it has mapped",
    )


def run(args: argparse.Namespace) -> int:
    """Prints, and returns the exit status."""
    from fastpaged.weights.packed_cache import PackedCache

    cache = PackedCache.from_environment()
    if cache is None:
        print("packed weights are not kept: FASTPAGED_CACHE is empty, or there is no home folder")
        return 0
    if args.clear:
        print(f"{cache.folder}: {_size(cache.clear())} removed")
        return 0
    files, unfinished = cache.files(), cache.unfinished()
    for file in reversed(files):
        day = datetime.datetime.fromtimestamp(file.last_used).strftime("%Y-%m-%d %H:%M")
        packing = f"{file.dtype}, {file.layout}, {file.version}"
        print(f"{_size(file.num_bytes):>10}  used {day}  {packing}  {file.source}")
    for part in unfinished:
        state = "being written" if part.is_being_written else "unfinished, of a process that ended"
        print(f"{_size(part.num_bytes):>10}  {state}: {part.path.name}")
    total = _size(sum(file.num_bytes for file in files) + sum(part.num_bytes for part in unfinished))
    print(f"{cache.folder}: {len(files) + len(unfinished)} of {total}, of {_size(cache.limit_bytes)} allowed")
    return 0


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
