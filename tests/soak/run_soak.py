"""Short requests by the thousand through an engine with a model that costs nothing: does memory stay flat?

    python tests/soak/run_soak.py --requests 100000

Among them are samples, beams, stop strings, aborts, refused ones, priorities, deadlines and preemptions. The first
parts warm up: pools of memory grow to what they need. After it, neither Python's objects and blocks nor the bytes of
malloc may grow by anything that is in proportion to the requests, and resident memory by no more than noise. Nothing
depends on how long it takes.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from soak import Memory, Soak, soak_engine

NUM_PARTS = 6
NUM_WARM_UP = 3
# Of a thousand requests: what a thing kept of every tenth would be, and less.
MOST_PER_1000 = {"objects": 5.0, "python_blocks": 20.0, "heap_bytes": 1000.0}
MOST_RESIDENT = 2 << 20  # in all: pages come and go
KINDS = ("plain", "drawn", "samples", "beams", "refused", "preempted", "found cached tokens", "stop", "length", "error",
         "abort", "deadline", "queue_timeout")  # fmt: skip


def growth(warm: Memory, last: Memory) -> list[str]:
    """What grew by more than it may."""
    thousands = (last.num_requests - warm.num_requests) / 1000
    grown = []
    for name, most in MOST_PER_1000.items():
        by = getattr(last, name) - getattr(warm, name)
        if by > most * thousands:
            grown.append(f"{name} by {by / thousands:.1f} per 1,000 requests (allowed {most:g})")
    resident = last.resident_bytes - warm.resident_bytes
    if resident > MOST_RESIDENT:
        grown.append(f"resident memory by {resident} bytes (allowed {MOST_RESIDENT})")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", choices=("outputs", "bytes"), help="leak on purpose, to see it noticed")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of requests that fail on purpose
    soak = Soak(soak_engine(), args.seed)
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
    grown = growth(parts[NUM_WARM_UP - 1], parts[-1])
    print(f"memory is NOT FLAT: {'; '.join(grown)}" if grown else "memory is flat, and no table holds a request")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
