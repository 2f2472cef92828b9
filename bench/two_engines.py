"""Two engines on one machine: do their waiting threads leave each other the cores?

    python bench/two_engines.py [--threads 2] [--seconds 3] [--rounds 5]

Each engine is a process of its own that decodes one sequence with a model of SmolLM2-135M's sizes and random weights.
Rounds of one engine alone and of two at once alternate; the median of the tokens per second of both together, over
that of one alone, is printed, and below 0.85 the exit status is 1: both want all cores, and lose that much by it.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

LEAST_SHARE = 0.85
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}


def serve(model: str, threads: int, pipe: Connection) -> None:
    """Decodes for as many seconds as are asked for, and answers with the tokens per second."""
    from fastpaged import LLM, SamplingParams

    llm = LLM(model, load_format="dummy", skip_tokenizer_init=True, num_threads=threads, max_model_len=1024)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, detokenize=False)
    prompt = {"prompt_token_ids": list(range(100, 108))}
    llm.generate(prompt, params)
    pipe.send(0.0)
    while (seconds := pipe.recv()) > 0.0:
        begin, tokens = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            llm.generate(prompt, params)
            tokens += params.max_tokens or 0
        pipe.send(tokens / (time.monotonic() - begin))


def tokens_per_second(pipes: list[Connection], seconds: float) -> float:
    for pipe in pipes:
        pipe.send(seconds)
    return sum(float(pipe.recv()) for pipe in pipes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of each engine")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        context = multiprocessing.get_context("spawn")
        pipes = []
        for _ in range(2):
            here, there = context.Pipe()
            context.Process(target=serve, args=(folder, args.threads, there), daemon=True).start()
            here.recv()
            pipes.append(here)
        alone, both = [], []
        for _ in range(args.rounds):
            alone.append(tokens_per_second(pipes[:1], args.seconds))
            both.append(tokens_per_second(pipes, args.seconds))
        for pipe in pipes:
            pipe.send(0.0)
    results = {"threads": args.threads, "alone": statistics.median(alone), "both": statistics.median(both)}
    share = results["both"] / results["alone"]
    print(f"one engine alone   {results['alone']:8.1f} tokens/s")
    print(f"two at once        {results['both']:8.1f} tokens/s together, {share:.2f} of one alone")
    print(json.dumps(results | {"share": share}))
    sys.exit(0 if share >= LEAST_SHARE else 1)


if __name__ == "__main__":
    main()
