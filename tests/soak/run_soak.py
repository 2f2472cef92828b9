"""Short requests by the thousand through an engine with a model that costs nothing: does memory stay flat?

    python tests/soak/run_soak.py --requests 100000 [--record]

Among them are samples, beams, stop strings, aborts, refused ones, priorities, deadlines and preemptions. The first
parts warm up: pools of memory grow to what they need. After it, neither Python's objects and blocks nor the bytes of
malloc may grow by anything that is in proportion to the requests, nor resident memory by more than noise. A part's
growth counts as the median part's: a table of Python's own that is made anew once (that of interned strings is half a
megabyte) grows once, and a leak in every part. Nothing depends on how long it takes. With --record all of it is
recorded; the recorder, too, must hold nothing of a request that is over, and a replay must decide the same.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from soak import Memory, Soak, soak_engine

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.simulator.replay import replay

NUM_PARTS = 10
NUM_WARM_UP = 3
# Noise, and what there may be for each request.
LIMITS = {"objects": (20.0, 0.002), "python_blocks": (150.0, 0.01), "heap_bytes": (40_000.0, 0.5)}
MOST_RESIDENT = 2 << 20  # pages come and go
KINDS = ("plain", "drawn", "samples", "beams", "refused", "preempted", "found cached tokens", "stop", "length", "error",
         "abort", "deadline", "queue_timeout")  # fmt: skip


def growth(parts: list[Memory]) -> list[str]:
    """What grew by more than it may. parts: those after warming up."""
    num_requests = parts[-1].num_requests - parts[0].num_requests
    grown = []
    for name, (noise, per_request) in LIMITS.items():
        values = [getattr(part, name) for part in parts]
        by = statistics.median(after - before for before, after in itertools.pairwise(values)) * (len(values) - 1)
        if by > noise + per_request * num_requests:
            allowed = f"allowed {noise:g} and {per_request:g} for each"
            grown.append(f"{name} by {by:g} over {num_requests} requests ({allowed})")
    resident = parts[-1].resident_bytes - parts[0].resident_bytes
    if resident > MOST_RESIDENT:
        grown.append(f"resident memory by {resident} bytes (allowed {MOST_RESIDENT})")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", choices=("outputs", "bytes"), help="leak on purpose, to see it noticed")
    parser.add_argument("--record", action="store_true", help="with a recorder, and a replay at the end")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of requests that fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        return run(args, os.path.join(folder, "recording") if args.record else None)


def run(args: argparse.Namespace, record: str | None) -> int:
    """The exit status."""
    engine = soak_engine(record)
    soak = Soak(engine, args.seed)
    kept: list[Any] = []
    if args.keep is not None:
        soak.on_output = lambda output: kept.append(output if args.keep == "outputs" else bytes(1024))
    print(f"{'requests':>9} {'objects':>9} {'blocks':>9} {'malloc KiB':>11} {'resident KiB':>13}")
    parts = []
    for memory in soak.run(args.requests, NUM_PARTS):
        parts.append(memory)
        print(
            f"{memory.num_requests:9} {memory.objects:9} {memory.python_blocks:9} {memory.heap_bytes >> 10:11} "
            f"{memory.resident_bytes >> 10:13}",
            flush=True,
        )
    print(", ".join(f"{count} {kind}" for kind, count in sorted(soak.kinds.items())))
    missing = [kind for kind in KINDS if not soak.kinds[kind]]
    if missing:
        print(f"no request of these kinds: {', '.join(missing)}")
        return 2
    grown = growth(parts[NUM_WARM_UP - 1 :])
    print(f"memory is NOT FLAT: {'; '.join(grown)}" if grown else "memory is flat, and no table holds a request")
    return 1 if grown or (record is not None and not comes_out_again(engine, record)) else 0


def comes_out_again(engine: LLMEngine, record: str) -> bool:
    """Whether a replay decides the same."""
    engine.close()
    result = replay(record)
    print(f"replayed: {result.num_decisions} decisions, {result.num_differences} of them different")
    for difference in result.differences:
        print(difference)
    return result.num_differences == 0 and not result.is_cut


if __name__ == "__main__":
    sys.exit(main())
