"""How far fastpaged's bfloat16 distributions lie from transformers in float32, beside transformers' own bfloat16.

    python tests/exact/run_kl.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--gemma gemma-3-270m]

Teacher-forced over at least 2,000 positions; prints mean KL(float32 || x) in nats for each op table this CPU runs (of
Gemma, whose path FASTPAGED_GEMMA3 may give, for all but the scalar one). Exits with 1 unless every table stays within
1.1 x transformers' bfloat16.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
import torch
from passages import passages
from real_models import Logits, transformers_logits, transformers_model

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.tokenizer import load_tokenizer
from fastpaged.worker.worker import Worker

LIMIT = 1.10


def fastpaged_kl(path: str, prompts: list[list[int]], exact: list[Logits], isa: str) -> float:
    """Sum over positions, through the scheduler: the first token prefilled, the others forced in, all prompts at once.

    Each step's rows are compared as they come: a vocabulary of 262,144 makes gigabytes of them.
    """
    worker = Worker(EngineConfig(model=path, isa=isa, dtype="bfloat16", max_model_len=1024, num_blocks=1024))
    try:
        scheduler = _core.Scheduler(
            num_blocks=worker.num_blocks,
            block_size=16,
            max_num_seqs=len(prompts),
            max_num_batched_tokens=2048,
            max_model_len=worker.max_model_len,
        )
        builder = _core.BatchBuilder(scheduler)
        greedy = _core.SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
        for i, ids in enumerate(prompts):
            scheduler.add(i, ids[:1], greedy, len(ids), [])
        total = 0.0
        done = [0] * len(prompts)
        while scheduler.has_unfinished():
            plan = scheduler.schedule()
            worker.execute(builder.build(plan))
            groups = [group for group, _, _ in plan.scheduled]
            total += kl_sum(np.stack([exact[g][done[g]] for g in groups]), worker.logits)
            for group in groups:
                done[group] += 1
            # The answer's last token has no position of its own left to predict.
            scheduler.update_tokens(plan, [(prompts[g] + [0])[done[g]] for g in groups])
        if done != [len(ids) for ids in prompts]:
            raise SystemExit(f"{isa}: {done} positions compared")
        return total
    finally:
        worker.close()


def kl_sum(p_logits: Logits, q_logits: Logits) -> float:
    """Sum over rows of KL(softmax(p) || softmax(q)), in nats."""
    total = 0.0
    for p_row, q_row in zip(p_logits, q_logits, strict=True):
        p = torch.log_softmax(torch.from_numpy(p_row).double(), -1)
        q = torch.log_softmax(torch.from_numpy(q_row).double(), -1)
        total += float((p.exp() * (p - q)).sum())
    return total


def check(path: str, num_tokens: int, isas: list[str]) -> bool:
    """Prints a line for each op table; False if one of them lies too far."""
    tokenizer = load_tokenizer(path)
    prompts = [tokenizer.encode(text)[:num_tokens] for text in passages()]
    positions = sum(map(len, prompts))
    if positions < 2000:
        raise SystemExit(f"--tokens: {positions} positions in all, at least 2,000 wanted")
    model = transformers_model(path, torch.float32)
    exact = [transformers_logits(model, ids) for ids in prompts]
    model = transformers_model(path, torch.bfloat16)
    peer = sum(kl_sum(p, transformers_logits(model, ids)) for p, ids in zip(exact, prompts, strict=True)) / positions
    del model
    print(f"{os.path.basename(path)}: {positions} positions; mean KL to transformers float32, nats per position")
    print(f"{'transformers bfloat16':24} {peer:.3e}", flush=True)
    worst = 0.0
    for isa in isas:
        ours = fastpaged_kl(path, prompts, exact, isa) / positions
        worst = max(worst, ours / peer)
        print(f"{'fastpaged ' + isa:24} {ours:.3e}  ({ours / peer:.2f} x)", flush=True)
    print(f"worst ratio {worst:.2f}, allowed {LIMIT:.2f}: {'ok' if worst <= LIMIT else 'TOO FAR'}")
    return worst <= LIMIT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a .gguf file or a folder")
    parser.add_argument("--gemma", default=os.environ.get("FASTPAGED_GEMMA3"), help="Gemma 3 270M, likewise")
    parser.add_argument("--isa", choices=_core.supported_isas(), action="append")
    parser.add_argument("--tokens", type=int, default=256, help="positions per passage")
    args = parser.parse_args()
    torch.set_num_threads(_core.available_cpus())
    isas = args.isa or _core.supported_isas()
    good = check(args.model, args.tokens, isas)
    if args.gemma:
        good = check(args.gemma, args.tokens, [isa for isa in isas if isa != "scalar"]) and good
    else:
        print("SKIPPED: Gemma 3 270M. Give its path as --gemma or in FASTPAGED_GEMMA3.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
