"""The equality matrix on a real model: tokens and logprobs bit-equal, alone against every other way to run them, those
ways included in which requests are preempted: by force, or because the pool holds hardly more than one of them; and
those in which all of it runs twice, the second time out of the prefix cache. So for requests of one answer; for fewer
ones of four samples or four beams, on fewer ways.

    python tests/exact/run_exact.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--isa avx512 --requests 32]
        [--kv-cache-dtype auto int8 fp8_e4m3]

Without --isa every op table this CPU runs is checked in bfloat16, the slow ones with fewer and shorter requests, the
emulated AMX only where there is no real one; then the best one in float32. All the same ways with a KV cache in 8 bits,
where --kv-cache-dtype names one: on the best table (or those of --isa), with fewer requests. Exits with 1 if any table
differs anywhere, if a request was not preempted that should have been, or if the bytes swapped and the tokens
recomputed are not what the scheduler says they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from exactness import (
    Answer,
    Outcome,
    Request,
    Variant,
    by_force,
    first_difference,
    make_forked_requests,
    make_pressed_requests,
    make_requests,
    not_found_again,
    pressed_variants,
    run,
    run_counted,
    variants,
    warmed,
)

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.tokenizer import load_tokenizer

CHUNKS, BLOCK_SIZES, THREADS = (1, 7, 64), (1, 16, 128), (1, 2)
MODES = ("swap", "recompute")
# Requests, tokens of the longest prompt, tokens of an answer.
LONGEST_PROMPT, LONGEST_ANSWER = 200, 24
SHORTER = {"scalar": (4, 40, 8), "avx2": (12, 100, 16)}
MOST_IN_8_BITS = 12  # requests
KV_CACHE_DTYPES = ("auto", "int8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class Check:
    """What to check on: kv_cache_dtype "auto" is that of dtype."""

    isa: str
    dtype: str
    kv_cache_dtype: str
    num_requests: int
    max_prompt: int
    max_tokens: int

    @property
    def name(self) -> str:
        kinds = [self.dtype] * (self.dtype != "bfloat16") + [self.kv_cache_dtype] * (self.kv_cache_dtype != "auto")
        return " ".join([self.isa, *kinds])


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


def unpreempted(base: EngineConfig) -> Iterator[Variant]:
    yield from variants(base, CHUNKS, BLOCK_SIZES, THREADS)


def preempted_by_force(base: EngineConfig) -> Iterator[Variant]:
    fewer = replace(base, num_blocks=512, swap_space=0.2)  # enough for all, and filled with NaN before every step
    together, *_, finest = variants(fewer, (7,), (1,), ())
    for mode in MODES:
        yield by_force(together, mode, seed=1)
        yield by_force(finest, mode, seed=2)


def preempted_for_want_of_room(base: EngineConfig, requests: list[Request]) -> Iterator[Variant]:
    for mode in MODES:
        yield from pressed_variants(base, mode, requests, block_size=2)


def alone(isa: str, base: EngineConfig, requests: list[Request]) -> list[Answer]:
    start = time.monotonic()
    answers = run(Variant("alone", base, alone=True), requests)
    tokens = sum(len(branch[0]) for branches, _ in answers for branch in branches)
    print(f"{isa}: {len(requests)} requests alone, {tokens} tokens ({time.monotonic() - start:.0f} s)", flush=True)
    return answers


def check(isa: str, requests: list[Request], expected: list[Answer], ways: Iterable[Variant], num_spared: int) -> bool:
    """Prints a line for each way; False if any differs from what is expected. All requests but the first num_spared,
    the oldest, must have been preempted."""
    same = True
    for variant in ways:
        start = time.monotonic()
        outcome = run_counted(variant, requests)
        wanted = [*expected, *expected] if variant.warm else expected
        fault = first_difference(wanted, outcome.answers) or not_preempted(outcome, num_spared)
        if variant.warm and fault is None:
            fault = not_found_again(variant, requests, outcome)
        same = same and fault is None
        cost = f", {outcome.cost}" if variant.config.preemption_mode else ""
        print(f"{isa}: {variant.name}: {fault or 'equal'}{cost} ({time.monotonic() - start:.0f} s)", flush=True)
    return same


def not_preempted(outcome: Outcome, num_spared: int) -> str | None:
    """Which requests should have been."""
    missed = [i for i, times in enumerate(outcome.num_preemptions) if i >= num_spared and times == 0]
    return f"never preempted: requests {missed}" if missed else None


def check_table(gguf: str, on: Check) -> bool:
    base = EngineConfig(
        model=gguf, isa=on.isa, dtype=on.dtype, kv_cache_dtype=on.kv_cache_dtype, max_model_len=512, block_size=16,
        num_blocks=1024, max_num_seqs=32, max_num_batched_tokens=512, num_threads=2, enable_prefix_caching=False,
    )  # fmt: skip
    name, count, max_prompt, max_tokens = on.name, on.num_requests, on.max_prompt, on.max_tokens
    requests = requests_for(gguf, count, max_prompt, max_tokens)
    pressed = make_pressed_requests(min(count, 8), load_tokenizer(gguf).vocab_size, max_tokens=16, seed=21)
    expected = alone(name, base, requests)
    same = check(name, requests, expected, unpreempted(base), num_spared=count)
    same = check(name, requests, expected, preempted_by_force(base), num_spared=0) and same
    same = check(name, requests, expected, map(warmed, unpreempted(base)), num_spared=2 * count) and same
    same = check(name, requests, expected, map(warmed, preempted_by_force(base)), num_spared=0) and same
    forked = make_forked_requests(min(count, 12), load_tokenizer(gguf).vocab_size, max_prompt, max_tokens // 2, seed=22)
    expected = alone(f"{name}, samples and beams", base, forked)
    together, *_, finest = variants(base, (7,), (1,), ())
    same = check(name, forked, expected, map(warmed, (together, finest)), num_spared=2 * len(forked)) and same
    same = check(name, forked, expected, preempted_by_force(base), num_spared=0) and same
    same = check(name, forked, expected, map(warmed, preempted_by_force(base)), num_spared=0) and same
    expected = alone(name, base, pressed)
    return check(name, pressed, expected, preempted_for_want_of_room(base, pressed), num_spared=1) and same


def checks(isas: list[str] | None, num_requests: int, kv_cache_dtypes: list[str]) -> Iterator[Check]:
    """isas: None for all of this CPU, of which the best is the first."""
    supported = _core.supported_isas()
    best = (isas or supported)[0]
    longest = (LONGEST_PROMPT, LONGEST_ANSWER)
    for kind in kv_cache_dtypes:
        if kind != "auto":
            for isa in isas or [best]:
                yield Check(isa, "bfloat16", kind, min(num_requests, MOST_IN_8_BITS), *longest)
            continue
        skipped = "amx_emulated" if "amx" in supported else None
        for isa in isas or [isa for isa in supported if isa != skipped]:
            size = (num_requests, *longest)
            yield Check(isa, "bfloat16", kind, *(size if isas else SHORTER.get(isa, size)))
        yield Check(best, "float32", kind, 8, 60, 8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--isa", choices=_core.supported_isas(), action="append")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, nargs="+", default=["auto"])
    args = parser.parse_args()
    same = True
    for on in checks(args.isa, args.requests, args.kv_cache_dtype):
        same = check_table(args.gguf, on) and same
    print("bit-equal everywhere" if same else "DIFFERENCES FOUND")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
