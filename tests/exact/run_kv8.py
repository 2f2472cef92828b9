"""What keys and values in 8 bits cost in quality: perplexity on a fixed text, and the error of what is kept.

    python tests/exact/run_kv8.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--gemma gemma-3-270m]

The text is a few thousand tokens of reference prose, in prompts of about a thousand, scored by the engine itself with
prompt_logprobs: every token is predicted from keys and values that are kept in 8 bits. Beside the perplexity stands the
error of the keys and values against those kept in bfloat16, as a share of their root mean square: in the first layer,
where both are of the same numbers, and in all, where what the layers below have read differs already. Exits with 1
unless int8 and fp8_e4m3 stay within 1 % of the perplexity with a KV cache in bfloat16. FASTPAGED_GEMMA3 may say where
Gemma 3 270M lies.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from passages import passages

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.sampling_params import SamplingParams

LIMIT = 0.01  # of int8 and fp8_e4m3
DTYPES = ("bfloat16", "int8", "fp8_e4m3", "fp8_e5m2")
HELD = ("int8", "fp8_e4m3")
BLOCK_SIZE = 8  # no multiple of 16: slot by slot in memory
PASSAGES_PER_PROMPT = 2

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scored:
    """perplexity: over all tokens but the prompts' first. kept: the keys and values of the last prompt, [num_layers,
    2 (K|V), num_tokens, num_kv_heads, head_dim]."""

    perplexity: float
    num_tokens: int
    kept: Floats


def scored(path: str, dtype: str, num_tokens: int, isa: str | None) -> Scored:
    """Each prompt alone, so that its blocks are known."""
    config = EngineConfig(
        model=path,
        isa=isa,
        dtype="bfloat16",
        kv_cache_dtype=dtype,
        block_size=BLOCK_SIZE,
        max_model_len=2048,
        num_blocks=2048 // BLOCK_SIZE,
        max_num_seqs=1,
        enable_prefix_caching=False,
        packed_cache=False,
        swap_space=0,
    )
    engine = LLMEngine(config)
    try:
        texts = passages()
        pairs = ["\n\n".join(texts[i : i + PASSAGES_PER_PROMPT]) for i in range(0, len(texts), PASSAGES_PER_PROMPT)]
        total, count = 0.0, 0
        for i, text in enumerate(pairs):
            ids = engine.tokenizer.encode(text)[:num_tokens]
            blocks = [int(block) for block in engine.scheduler.free_blocks()]
            engine.add_request(str(i), ids, SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False))
            while engine.has_unfinished_requests():
                outputs = engine.step()
            entries = outputs[0].prompt_logprobs
            assert entries is not None
            for token, entry in zip(ids[1:], list(entries)[1:], strict=True):
                assert entry is not None
                total += entry[token].logprob
            count += len(ids) - 1
        kept = _kept(engine, blocks[: -(-len(ids) // BLOCK_SIZE)], dtype)[:, :, : len(ids)]
        return Scored(math.exp(-total / count), count, kept)
    finally:
        engine.close()


def _kept(engine: LLMEngine, blocks: list[int], dtype: str) -> Floats:
    """What attention reads of these blocks, but for its rounding to bfloat16."""
    memory, model = engine.worker.kv_memory, engine.worker.model_config
    pool: npt.NDArray[Any] = memory.array[blocks]
    if dtype == "bfloat16":
        values = (pool.astype(np.uint32) << 16).view(np.float32)
    else:
        codes, scales = memory.codes_and_scales(pool)
        lead = (*pool.shape[:-1], BLOCK_SIZE)
        values = worth(dtype)[codes].reshape(*lead, model.head_dim) * scales.reshape(*lead, 1)
    by_token = values.transpose(1, 2, 0, 4, 3, 5)  # layers, K|V, blocks, slots, heads, elements
    return by_token.reshape(*by_token.shape[:2], -1, *by_token.shape[4:])


def worth(dtype: str) -> Floats:
    """[256]: of each code."""
    codes = np.arange(256)
    if dtype == "int8":
        return codes.astype(np.uint8).view(np.int8).astype(np.float32)
    mantissa_bits, bias = (3, 7) if dtype == "fp8_e4m3" else (2, 15)
    exponent, mantissa = (codes & 0x7F) >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    magnitude = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)


def _error(kept: Floats, exact: Floats) -> float:
    """Root mean square of the difference, as a share of that of `exact`."""
    return float(np.sqrt(np.square(kept - exact, dtype=np.float64).sum() / np.square(exact, dtype=np.float64).sum()))


def check(path: str, num_tokens: int, isa: str | None) -> bool:
    """Prints a line for each dtype; False if one of those that are held to it lies too far."""
    exact = scored(path, DTYPES[0], num_tokens, isa)
    print(f"{os.path.basename(path)} on {isa or _core.default_isa()}: {exact.num_tokens} tokens scored")
    print(f"{'KV cache':10} {'perplexity':>10} {'change':>9}   error of K and V: first layer    all layers")
    print(f"{DTYPES[0]:10} {exact.perplexity:10.4f}", flush=True)
    good = True
    for dtype in DTYPES[1:]:
        other = scored(path, dtype, num_tokens, isa)
        change = other.perplexity / exact.perplexity - 1
        errors = [_error(other.kept[part], exact.kept[part]) for part in np.ndindex(1, 2)]
        errors += [_error(other.kept[:, kv], exact.kept[:, kv]) for kv in (0, 1)]
        words = "  ".join(f"{error:6.2%}" for error in errors)
        is_good = dtype not in HELD or abs(change) <= LIMIT
        good = good and is_good
        print(
            f"{dtype:10} {other.perplexity:10.4f} {change:+9.3%}   {words}{'' if is_good else '  TOO FAR'}", flush=True
        )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a .gguf file or a folder")
    parser.add_argument("--gemma", default=os.environ.get("FASTPAGED_GEMMA3"), help="Gemma 3 270M, likewise")
    parser.add_argument("--isa", choices=_core.supported_isas(), help="default: the best one")
    parser.add_argument("--tokens", type=int, default=2000, help="most of a prompt")
    args = parser.parse_args()
    good = check(args.model, args.tokens, args.isa)
    if args.gemma:
        good = check(args.gemma, args.tokens, args.isa) and good
    else:
        print("SKIPPED: Gemma 3 270M. Give its path as --gemma or in FASTPAGED_GEMMA3.")
    print(f"{' and '.join(HELD)} within {LIMIT:.0%} of bfloat16: {'ok' if good else 'NO'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
