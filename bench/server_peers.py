"""Latency under a Poisson load, beside other servers: at 70 % of our capacity, the same load for each, in turn.

    python bench/server_peers.py --model FOLDER [--vllm-python PYTHON] [--llama-server PATH --gguf FILE]

First our capacity: what we answer when all requests come at once. Then each server answers the same requests, which
come at that rate; each has all cores, and starts anew for each round, whose medians are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

from served import fastpaged_command, load, served

PORT = 8632
FIGURES = ("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "output_throughput")
MAX_NUM_SEQS = 64


def commands(args: argparse.Namespace) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name -> (command, environment)."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {"fastpaged": (fastpaged_command(args.model, PORT), {})}
    num_cpus = len(os.sched_getaffinity(0))
    if args.llama_server:
        found["llama-server"] = (
            [
                args.llama_server, "-m", args.gguf, "--port", str(PORT), "-np", str(MAX_NUM_SEQS),
                "-c", str(MAX_NUM_SEQS * 512), "-t", str(num_cpus),
            ],
            {},
        )  # fmt: skip
    if args.vllm_python:
        command = [args.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", args.model]
        options = ["--port", str(PORT), "--dtype", "bfloat16", "--max-model-len", "1024"]
        env = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_cpus - 1}"}
        found["vLLM"] = ([*command, *options, "--max-num-seqs", str(MAX_NUM_SEQS)], env)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with safetensors")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="of an environment with vllm for CPUs")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--gguf", metavar="FILE", help="the same weights for it, in the same precision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=120)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rate", type=float, help="requests per second, instead of 70 %% of our capacity")
    args = parser.parse_args()
    options = [
        "--dataset", "random", "--random-input-len", str(args.input_len), "--random-output-len", str(args.output_len),
        "--range-ratio", "0.5", "--random-vocab-size", "40000", "--ignore-eos", "--num-prompts", str(args.num_prompts),
        "--warmup", "2",
    ]  # fmt: skip
    servers = commands(args)
    rate = args.rate
    if rate is None:
        with served(servers["fastpaged"][0], PORT):
            rate = 0.7 * load(PORT, [*options, "--request-rate", "inf"])["request_throughput"]
    print(f"{rate:.2f} requests/s", flush=True)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
    for number in range(args.rounds):
        for name, (command, env) in servers.items():
            with served(command, PORT, env):
                found[name].append(load(PORT, [*options, "--request-rate", f"{rate:.3f}"]))
            print(f"round {number + 1}, {name}: {found[name][-1]['completed']} answered", flush=True)
    print(f"{'':14}" + "".join(f"{figure:>20}" for figure in FIGURES))
    for name, rounds in found.items():
        medians = [statistics.median(one[figure] for one in rounds) for figure in FIGURES]
        print(f"{name:14}" + "".join(f"{median:20.1f}" for median in medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
