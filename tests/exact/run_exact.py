"""The equality matrix on a real model: tokens and logprobs bit-equal, alone against every other way to run them.

    python tests/exact/run_exact.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--isa avx512 --requests 32]

Without --isa every op table this CPU runs is checked, the scalar one with fewer and shorter requests, and the emulated
AMX only where there is no real one. Exits with 1 if any table differs anywhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from exactness import Request, Variant, first_difference, make_requests, run, variants

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.tokenizer import load_tokenizer

CHUNKS, BLOCK_SIZES, THREADS = (1, 7, 64), (1, 16, 128), (1, 2)


def requests_for(gguf: str, count: int, max_prompt: int, max_tokens: int) -> list[Request]:
    """Random ids beside real chats: both flat and peaked distributions."""
    tokenizer = load_tokenizer(gguf)
    made = make_requests(count, tokenizer.vocab_size, max_prompt, max_tokens, seed=20)
    questions = (
        "What is the capital of France?",
        "Count from 1 to 20.",
        "Write a haiku about snow.",
        "Why is the sky blue?",
    )
    for i, question in enumerate(questions[: count // 4]):
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}])
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        made[i] = Request(ids, made[i].params)
    return made


def check(gguf: str, isa: str, requests: list[Request]) -> bool:
    """Prints a line for each variant; False if any differs from the requests run alone."""
    base = EngineConfig(
        model=gguf, isa=isa, max_model_len=512, block_size=16, num_blocks=1024, max_num_seqs=32,
        max_num_batched_tokens=512, num_threads=2,
    )  # fmt: skip
    start = time.monotonic()
    expected = run(Variant("alone", base, alone=True), requests)
    tokens = sum(len(tokens) for tokens, _, _ in expected)
    print(f"{isa}: {len(requests)} requests alone, {tokens} tokens ({time.monotonic() - start:.0f} s)", flush=True)
    same = True
    for variant in variants(base, CHUNKS, BLOCK_SIZES, THREADS):
        start = time.monotonic()
        difference = first_difference(expected, run(variant, requests))
        same = same and difference is None
        print(f"{isa}: {variant.name}: {difference or 'equal'} ({time.monotonic() - start:.0f} s)", flush=True)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--isa", choices=_core.supported_isas(), action="append")
    parser.add_argument("--requests", type=int, default=32)
    args = parser.parse_args()
    same = True
    supported = _core.supported_isas()
    skipped = "amx_emulated" if "amx" in supported else None
    for isa in args.isa or [isa for isa in supported if isa != skipped]:
        short = isa == "scalar" and not args.isa
        count, max_prompt, max_tokens = (6, 40, 4) if short else (args.requests, 200, 24)
        same = check(args.gguf, isa, requests_for(args.gguf, count, max_prompt, max_tokens)) and same
    print("bit-equal everywhere" if same else "DIFFERENCES FOUND")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
