"""What keys and values in 8 bits cost and give in speed: decode steps beside those of an engine that keeps bfloat16.

    python bench/kv8_speed.py --model FOLDER [--threads 2] [--sequences 1,16] [--contexts 256,4096] [--rounds 3]

Both engines live in one process and take turns, cell by cell; of each the median over the rounds is shown, and the
ratio of these medians. CPU time of a step depends least on what else the machine does; attention is timed by the clock
on the wall. The pools are of the same number of tokens; their bytes are printed. As in sweep.py, what the contexts hold
is noise. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from sweep_cells import Bench, Cell

from fastpaged.config import KVDType
from fastpaged.config.dtypes import KV_CODES
from fastpaged.weights.checkpoint import open_checkpoint

_ROOM = 192  # tokens of a sequence beyond its context, with the watermark


def compared(args: argparse.Namespace, dtype: KVDType) -> list[dict[str, Any]]:
    """A row for each cell: bfloat16 and `dtype` in turn."""
    checkpoint = open_checkpoint(args.model)
    model = checkpoint.config
    checkpoint.close()
    num_tokens = max(args.sequences) * (max(args.contexts) + _ROOM) * 102 // 100
    dtypes: tuple[KVDType, ...] = ("bfloat16", dtype)
    bytes_of = {of: num_tokens * model.kv_bytes_per_token(of) for of in dtypes}
    engines = {of: Bench(args.model, args.threads, max(args.sequences), size, of) for of, size in bytes_of.items()}
    pools = {of: engine.engine.worker.kv_memory.array.nbytes for of, engine in engines.items()}
    rows = []
    try:
        for sequences in args.sequences:
            for context in args.contexts:
                cells: dict[str, list[Cell]] = {of: [] for of in engines}
                for _ in range(args.rounds):
                    for of, engine in engines.items():
                        cells[of].append(engine.decode(sequences, context, args.seconds))
                rows.append(_row(dtype, sequences, context, cells["bfloat16"], cells[dtype]))
                print(_line(rows[-1]), flush=True)
    finally:
        for engine in engines.values():
            engine.close()
    share = pools[dtype] / pools["bfloat16"]
    print(f"{dtype}: a pool of {pools[dtype]} bytes, {share:.3f} of bfloat16's {pools['bfloat16']}", flush=True)
    return rows


def _row(dtype: str, sequences: int, context: int, before: list[Cell], after: list[Cell]) -> dict[str, Any]:
    row: dict[str, Any] = {"dtype": dtype, "sequences": sequences, "context": context}
    for name in ("cpu_ms", "step_ms", "attention_ms"):
        of_bfloat16, of_codes = (statistics.median(getattr(cell, name) for cell in cells) for cells in (before, after))
        row |= {f"bfloat16_{name}": of_bfloat16, name: of_codes, f"{name}_ratio": of_codes / of_bfloat16}
    return row


def _line(row: dict[str, Any]) -> str:
    of_names = (
        f"{row[f'bfloat16_{name}']:.2f} | {row[name]:.2f} | {row[f'{name}_ratio']:.2f}"
        for name in ("cpu_ms", "step_ms", "attention_ms")
    )
    return f"| `{row['dtype']}` | {row['sequences']} | {row['context']} | {' | '.join(of_names)} |"


def main() -> None:
    def integers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=KV_CODES, action="append", help="default: all of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=integers, default=[1, 16])
    parser.add_argument("--contexts", type=integers, default=[256, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one engine in one cell of one round")
    args = parser.parse_args()
    columns = (
        f"{bf16}, ms | {ours}, ms | ratio"
        for bf16, ours in (("bf16 CPU", "CPU"), ("bf16 step", "step"), ("bf16 attention", "attention"))
    )
    print(f"| KV | sequences | context | {' | '.join(columns)} |")
    print("|---|" + "---:|" * 11)
    rows = [row for dtype in args.dtype or KV_CODES for row in compared(args, dtype)]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
