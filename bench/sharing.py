"""How much memory branches of a request save by sharing blocks: the paper's figure 15, on a real model.

    python bench/sharing.py --model MODEL [--requests 48] [--ways 2 4 6] [--trace FILE] [--threads N] [--output DIR]

Each request is sampled 2, 4 and 6 times in parallel, then searched with 2, 4 and 6 beams, no two requests sharing
anything (prefix caching is off). In every step blocks are counted as sequences see them (logical: each its own) and as
they lie in memory (physical: each once); saved is 1 - 1 / mean(logical / physical), as in the paper.

Prompts are beginnings of English prose, as long as Alpaca's instructions, answers as long as its answers; the lengths
are quantiles of lognormal distributions fitted to them, or those of a trace's rows, drawn from a seed (--trace: a file
with the columns prompt_tokens and output_tokens). Ends of sequence are tokens like others, so that every branch has
that length. Prints a table; writes DIR/sharing.json.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import io
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from workloads import lognormal_lengths

from fastpaged import LLM, SamplingParams
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.progress import ProgressBar

# The paper's figure 15: OPT-13B on Alpaca, percent of memory saved by (what is done, how many ways).
PAPER: Mapping[tuple[str, int], float] = {
    ("samples", 2): 6.09,
    ("samples", 4): 8.53,
    ("samples", 6): 9.79,
    ("beams", 2): 37.56,
    ("beams", 4): 53.13,
    ("beams", 6): 55.16,
}
KINDS = ("samples", "beams")
_PROMPTS, _OUTPUTS = (15, 0.64, 200), (42, 0.81, 400)  # (median, sigma of the logarithm, longest) of Alpaca's lengths
_MAX_NUM_SEQS = 96


@dataclass(frozen=True)
class Asked:
    """A prompt, and how many tokens each branch goes on."""

    prompt: list[int]
    num_out: int


@dataclass(frozen=True)
class Saving:
    """Of one way to branch. num_copies: of blocks, in all steps; means are over steps."""

    kind: str
    ways: int
    num_steps: int
    mean_ratio: float
    mean_logical: float
    mean_physical: float
    num_copies: int

    @property
    def saved(self) -> float:
        """Share of the memory that copies would take."""
        return 1 - 1 / self.mean_ratio


def lengths_of(trace: Path | None, count: int) -> list[tuple[int, int]]:
    """(prompt, output) of each request."""
    rng = random.Random(f"sharing:{count}")
    if trace is None:
        prompts, outputs = lognormal_lengths(count, *_PROMPTS), lognormal_lengths(count, *_OUTPUTS)
        rng.shuffle(prompts)
        rng.shuffle(outputs)
        return list(zip(prompts, outputs, strict=True))
    data = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    return [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in rng.sample(rows, count)]


def requests_of(engine: LLMEngine, lengths: Sequence[tuple[int, int]]) -> list[Asked]:
    """Pieces of prose, each another one for as long as there are."""
    texts = [engine.tokenizer.encode(topics[name].strip()) for name in sorted(topics)]
    texts = [ids for ids in texts if len(ids) >= max(prompt for prompt, _ in lengths)]
    return [Asked(texts[i % len(texts)][:prompt], num_out) for i, (prompt, num_out) in enumerate(lengths)]


def params_of(kind: str, ways: int, num_out: int, seed: int) -> SamplingParams:
    """Of one request."""
    common: dict[str, Any] = {"n": ways, "max_tokens": num_out, "ignore_eos": True, "detokenize": False}
    if kind == "beams":
        return SamplingParams(use_beam_search=True, temperature=0.0, **common)
    return SamplingParams(temperature=1.0, seed=seed, **common)


def measure(engine: LLMEngine, requests: Sequence[Asked], kind: str, ways: int, bar: ProgressBar | None) -> Saving:
    """All requests at once, as many running as there is room for."""
    blocks: list[tuple[int, int]] = []
    scheduler = engine.scheduler
    copied = scheduler.stats.num_blocks_copied_on_write
    engine.on_planned = lambda: blocks.append((scheduler.num_logical_blocks, scheduler.num_held_blocks))
    try:
        for i, asked in enumerate(requests):
            prepared = engine.prepare(str(i), asked.prompt, params_of(kind, ways, asked.num_out, seed=i))
            engine.enqueue(prepared, final_only=True)
        num_done = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                lengths = [len(answer.token_ids) for answer in output.outputs]
                if lengths != [requests[int(output.request_id)].num_out] * ways:
                    raise SystemExit(f"{kind} {ways}: request {output.request_id} has answers of {lengths} tokens")
                num_done += 1
            if bar is not None:
                bar(f"{ways} {kind}", num_done, len(requests))
    finally:
        engine.on_planned = None
        if bar is not None:
            bar.clear()
    return Saving(
        kind,
        ways,
        len(blocks),
        statistics.fmean(logical / physical for logical, physical in blocks),
        statistics.fmean(logical for logical, _ in blocks),
        statistics.fmean(physical for _, physical in blocks),
        scheduler.stats.num_blocks_copied_on_write - copied,
    )


def table(savings: Sequence[Saving]) -> str:
    """For people, with the paper's figures beside."""
    lines = ["| | saved | the paper (OPT-13B, Alpaca) | logical blocks | physical blocks | copies a step |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for s in savings:
        paper = f"{PAPER[s.kind, s.ways]:.1f} %" if (s.kind, s.ways) in PAPER else "-"
        blocks = f"{s.mean_logical:.1f} | {s.mean_physical:.1f} | {s.num_copies / s.num_steps:.2f}"
        lines.append(f"| {s.ways} {s.kind} | {100 * s.saved:.1f} % | {paper} | {blocks} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--ways", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--trace", type=Path, help="a .csv or .csv.gz with the lengths of requests")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    lengths = lengths_of(args.trace, args.requests)
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    with LLM(
        args.model,
        num_threads=args.threads,
        max_num_seqs=_MAX_NUM_SEQS,
        max_model_len=1024,
        enable_prefix_caching=False,
        packed_cache=False,
    ) as llm:
        requests = requests_of(llm.engine, lengths)
        savings = []
        for kind in KINDS:
            for ways in args.ways:
                savings.append(measure(llm.engine, requests, kind, ways, bar))
                print(f"{ways} {kind}: {savings[-1].saved:.2%} saved", file=sys.stderr, flush=True)
        block_size = llm.engine.config.block_size
    mean_prompt = statistics.fmean(len(asked.prompt) for asked in requests)
    mean_out = statistics.fmean(asked.num_out for asked in requests)
    print(f"{len(requests)} requests of {mean_prompt:.1f} + {mean_out:.1f} tokens, blocks of {block_size} tokens\n")
    print(table(savings))
    args.output.mkdir(parents=True, exist_ok=True)
    rows = [{**dataclasses.asdict(saving), "saved": saving.saved} for saving in savings]
    figures = {
        "model": Path(args.model).name,
        "num_requests": len(requests),
        "mean_prompt_tokens": mean_prompt,
        "mean_output_tokens": mean_out,
        "block_size": block_size,
        "savings": rows,
    }
    (args.output / "sharing.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
