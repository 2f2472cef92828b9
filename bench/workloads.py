"""Workloads: requests as token ids, the same for every engine, made from a seed and the size of a vocabulary.

    python bench/workloads.py DIR (--vocab-size N | --model FOLDER) [--seed 0] [--only w1 w3]

Writes DIR/NAME.json, [{"prompt": [token ids], "out": tokens to generate}, ...], which `fastpaged bench throughput`
reads as well:

    w1  one request, 128 + 128 tokens: decoding at batch 1
    w2  64 requests with lengths as people's are, 10.2k + 10.3k tokens: offline throughput
    w3  one request, 4096 + 16 tokens: prefill
    w4  32 requests that share 1024 tokens, 32 of their own and 32 to generate: shared prefixes

How long the requests are does not depend on seed or vocabulary; which tokens they hold does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TypedDict


class Request(TypedDict):
    """A prompt, and how many tokens to generate after it."""

    prompt: list[int]
    out: int


# (median, sigma of the logarithm, longest) of w2's lengths: those of questions to an assistant, and of its answers.
_W2_PROMPTS = (101, 0.99, 1024)
_W2_OUTPUTS = (111, 1.0, 512)
_W2_REQUESTS = 64
_W2_ORDER = "the order of w2"  # seeds which prompt goes with which answer: the same in every w2
# Ids that vocabularies keep for special tokens, which engines may treat on their own, lie at either end.
_AT_THE_ENDS = 512


def make(name: str, vocab_size: int, seed: int = 0) -> list[Request]:
    """The requests of one workload. KeyError: there is none of that name; ValueError: too small a vocabulary."""
    if vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
    margin = min(_AT_THE_ENDS, vocab_size // 4)
    rng = random.Random(f"{name}:{vocab_size}:{seed}")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(margin, vocab_size - margin) for _ in range(count)]

    return WORKLOADS[name](tokens)


def lognormal_lengths(count: int, median: float, sigma: float, longest: int) -> list[int]:
    """The distribution's quantiles at the middle of `count` equal parts, ascending, from 1 to `longest`."""
    normal = NormalDist(math.log(median), sigma)
    quantiles = (math.exp(normal.inv_cdf((index + 0.5) / count)) for index in range(count))
    return [min(longest, max(1, round(length))) for length in quantiles]


def _one(num_prompt: int, num_out: int) -> Callable[[Callable[[int], list[int]]], list[Request]]:
    return lambda tokens: [Request(prompt=tokens(num_prompt), out=num_out)]


def _mixed(tokens: Callable[[int], list[int]]) -> list[Request]:
    prompts = lognormal_lengths(_W2_REQUESTS, *_W2_PROMPTS)
    outputs = lognormal_lengths(_W2_REQUESTS, *_W2_OUTPUTS)
    order = random.Random(_W2_ORDER)
    order.shuffle(prompts)
    order.shuffle(outputs)
    return [Request(prompt=tokens(prompt), out=out) for prompt, out in zip(prompts, outputs, strict=True)]


def _sharing(tokens: Callable[[int], list[int]]) -> list[Request]:
    shared = tokens(1024)
    return [Request(prompt=shared + tokens(32), out=32) for _ in range(32)]


WORKLOADS: Mapping[str, Callable[[Callable[[int], list[int]]], list[Request]]] = {
    "w1": _one(128, 128),
    "w2": _mixed,
    "w3": _one(4096, 16),
    "w4": _sharing,
}


def write(directory: Path, names: Sequence[str], vocab_size: int, seed: int = 0) -> dict[str, Path]:
    """Makes the workloads' files; returns them by name."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {name: directory / f"{name}.json" for name in names}
    for name, path in files.items():
        path.write_text(json.dumps(make(name, vocab_size, seed)) + "\n", encoding="utf-8")
    return files


def vocab_size_of(model: Path) -> int:
    """As the model folder's config.json has it."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int(config.get("text_config", config)["vocab_size"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--vocab-size", type=int)
    source.add_argument("--model", type=Path, help="a folder with config.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    args = parser.parse_args()
    vocab_size = vocab_size_of(args.model) if args.model is not None else args.vocab_size
    for path in write(args.directory, args.only, vocab_size, args.seed).values():
        requests = json.loads(path.read_text(encoding="utf-8"))
        num_prompt, num_out = sum(len(r["prompt"]) for r in requests), sum(r["out"] for r in requests)
        print(f"{path}: {len(requests)} requests, {num_prompt} prompt tokens, {num_out} to generate")


if __name__ == "__main__":
    main()
