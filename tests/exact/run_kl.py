"""How far fastpaged's bfloat16 distributions lie from transformers in float32, beside transformers' own bfloat16.

    python tests/exact/run_kl.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Teacher-forced over at least 2,000 positions; prints mean KL(float32 || x) in nats for each op table this CPU runs.
Exits with 1 unless every table stays within 1.1 x transformers' bfloat16.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
import numpy.typing as npt
import torch
from passages import passages
from transformers import AutoModelForCausalLM

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.tokenizer import load_tokenizer
from fastpaged.worker.worker import Worker

LIMIT = 1.10
Logits = npt.NDArray[np.float32]


def reference_logits(gguf: str, prompts: list[list[int]], dtype: torch.dtype) -> list[Logits]:
    """[positions, vocab] float32 for each prompt.

    Weights are dequantised in float32 first: asked for bfloat16, transformers may keep GGUF blocks packed and compute
    in float32, which is no bfloat16 model.
    """
    folder, name = os.path.split(os.path.abspath(gguf))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).to(dtype).eval()
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].float().numpy() for ids in prompts]


def fastpaged_logits(gguf: str, prompts: list[list[int]], isa: str) -> list[Logits]:
    """The same through the scheduler: the first token prefilled, the others forced in, all prompts together."""
    worker = Worker(EngineConfig(model=gguf, isa=isa, max_model_len=1024, num_blocks=1024))
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
        rows: list[list[Logits]] = [[] for _ in prompts]
        while scheduler.has_unfinished():
            plan = scheduler.schedule()
            worker.execute(builder.build(plan))
            groups = [group for group, _, _ in plan.scheduled]
            for group, logits in zip(groups, worker.logits, strict=True):
                rows[group].append(logits.copy())
            # The answer's last token has no position of its own left to predict.
            scheduler.update_tokens(plan, [(prompts[g] + [0])[len(rows[g])] for g in groups])
        return [np.stack(prompt_rows) for prompt_rows in rows]
    finally:
        worker.close()


def mean_kl(reference: list[Logits], other: list[Logits]) -> float:
    """Mean over positions of KL(softmax(reference) || softmax(other)), in nats."""
    total, positions = 0.0, 0
    for p_logits, q_logits in zip(reference, other, strict=True):
        p = torch.log_softmax(torch.from_numpy(p_logits).double(), -1)
        q = torch.log_softmax(torch.from_numpy(q_logits).double(), -1)
        total += float((p.exp() * (p - q)).sum())
        positions += len(p_logits)
    return total / positions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--tokens", type=int, default=256, help="positions per passage")
    args = parser.parse_args()
    torch.set_num_threads(_core.available_cpus())
    tokenizer = load_tokenizer(args.gguf)
    prompts = [tokenizer.encode(text)[: args.tokens] for text in passages()]
    positions = sum(map(len, prompts))
    if positions < 2000:
        raise SystemExit(f"--tokens: {positions} positions in all, at least 2,000 wanted")

    exact = reference_logits(args.gguf, prompts, torch.float32)
    peer = mean_kl(exact, reference_logits(args.gguf, prompts, torch.bfloat16))
    print(f"{positions} positions; mean KL to transformers float32, nats per position")
    print(f"{'transformers bfloat16':24} {peer:.3e}")
    worst = 0.0
    for isa in _core.supported_isas():
        ours = mean_kl(exact, fastpaged_logits(args.gguf, prompts, isa))
        worst = max(worst, ours / peer)
        print(f"{'fastpaged ' + isa:24} {ours:.3e}  ({ours / peer:.2f} x)", flush=True)
    print(f"worst ratio {worst:.2f}, allowed {LIMIT:.2f}: {'ok' if worst <= LIMIT else 'TOO FAR'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
