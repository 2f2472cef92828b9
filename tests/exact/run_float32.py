"""Greedy answers in float32, token by token, against transformers in float32.

    python tests/exact/run_float32.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--gemma gemma-3-270m]

20 prompts, 64 tokens each, on every op table this CPU runs (the scalar one with fewer and shorter). An answer is equal,
or where it first differs the two most likely tokens of transformers lie less than 1e-4 apart: then either is right.
Gemma 3 270M, of the path in FASTPAGED_GEMMA3 or --gemma, is left out, loudly, where there is none. Exits with 1 if an
answer differs for no such reason.

transformers sees prompt and answer at once: up to its first other choice, that is what its own greedy answer sees.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from passages import passages
from real_models import transformers_logits, transformers_model

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.tokenizer import load_tokenizer
from fastpaged.worker.worker import Worker

NUM_PROMPTS, NUM_TOKENS = 20, 64
MAX_GAP = 1e-4  # of the logits of the two most likely tokens
SHORT = (2, 8)  # prompts and tokens of the scalar table


def prompts_of(path: str) -> list[list[int]]:
    """From a few tokens to whole passages, which are longer than Gemma's window."""
    tokenizer = load_tokenizer(path)
    texts = [tokenizer.encode(text) for text in passages()]
    short = [texts[i % len(texts)][: 6 + 9 * i] for i in range(NUM_PROMPTS - 4)]
    return short + [ids[:600] for ids in texts[:4]]


def greedy_answers(path: str, isa: str, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """All prompts together, in chunks beside each other's decoding; ends of sequence are tokens like others."""
    config = EngineConfig(
        model=path, isa=isa, dtype="float32", max_model_len=1024, num_blocks=1024, max_num_batched_tokens=256
    )
    worker = Worker(config)
    try:
        scheduler = _core.Scheduler(
            num_blocks=worker.num_blocks,
            block_size=config.block_size,
            max_num_seqs=len(prompts),
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=worker.max_model_len,
        )
        builder = _core.BatchBuilder(scheduler)
        greedy = _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
        for i, ids in enumerate(prompts):
            scheduler.add(i, ids, greedy, num_tokens, [])
        answers: list[list[int]] = [[] for _ in prompts]
        while scheduler.has_unfinished():
            plan = scheduler.schedule()
            for event in scheduler.update(plan, worker.execute(builder.build(plan))):
                if event.token_id is not None:
                    answers[event.group_id].append(event.token_id)
        return answers
    finally:
        worker.close()


@dataclass(frozen=True)
class Difference:
    """Where an answer first differs, and how far the two most likely tokens of transformers lie apart there."""

    prompt: int
    token: int
    gap: float


def first_difference(model: Any, number: int, prompt: list[int], answer: list[int]) -> Difference | None:
    logits = transformers_logits(model, (prompt + answer)[:-1], len(answer))
    for i, (row, token) in enumerate(zip(logits, answer, strict=True)):
        if row.argmax() != token:
            second, first = np.partition(row, -2)[-2:]
            return Difference(number, i, float(first - second))
    return None


def check(path: str, isas: list[str]) -> bool:
    """Prints a line for each op table; False if an answer differs for no reason."""
    torch.set_num_threads(_core.available_cpus())
    prompts = prompts_of(path)
    model = transformers_model(path, torch.float32)
    good = True
    for isa in isas:
        start = time.monotonic()
        count, num_tokens = SHORT if isa == "scalar" else (NUM_PROMPTS, NUM_TOKENS)
        answers = greedy_answers(path, isa, prompts[:count], num_tokens)
        if any(len(answer) != num_tokens for answer in answers):
            raise SystemExit(f"{path}: {isa}: an answer is shorter than {num_tokens} tokens")
        found = [first_difference(model, i, prompts[i], answer) for i, answer in enumerate(answers)]
        differences = [difference for difference in found if difference is not None]
        bad = [difference for difference in differences if not difference.gap < MAX_GAP]
        good = good and not bad
        print(
            f"{os.path.basename(path):36} {isa:13} {count:3} x {num_tokens:2}  {count - len(differences):3} equal"
            f"  {len(differences):2} of a gap below {MAX_GAP:g}{'' if not bad else '  WRONG'}"
            f"  ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        for d in differences:
            print(f"    prompt {d.prompt}, token {d.token}: gap {d.gap:.2e}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a .gguf file or a folder")
    parser.add_argument("--gemma", default=os.environ.get("FASTPAGED_GEMMA3"), help="Gemma 3 270M, likewise")
    parser.add_argument("--isa", choices=_core.supported_isas(), action="append")
    args = parser.parse_args()
    isas = args.isa or _core.supported_isas()
    good = check(args.model, isas)
    if args.gemma:
        good = check(args.gemma, isas) and good
    else:
        print("SKIPPED: Gemma 3 270M. Give its path as --gemma or in FASTPAGED_GEMMA3.")
    print("every answer is that of transformers" if good else "DIFFERENCES FOUND")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
