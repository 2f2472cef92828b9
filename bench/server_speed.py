"""What HTTP costs: the tokens per second of 64 streams against those of the same requests offline, in turn.

    python bench/server_speed.py --model FOLDER [--rounds 3]

Both engines have one thread, offline on one core with nothing beside it; the client of the server has the other core,
which the server's event loop shares. Prints medians, the time between tokens against that of a step, and what an idle
server takes of a core.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time

from served import cpu_seconds, fastpaged_command, load, served

from fastpaged import LLM, SamplingParams

PORT = 8631


def offline(args: argparse.Namespace) -> float:
    """Seconds for all requests, in a process that keeps to the first core."""
    rng = random.Random(0)
    prompts = [[rng.randrange(100, args.vocab_size) for _ in range(args.input_len)] for _ in range(args.streams)]
    params = SamplingParams(max_tokens=args.output_len, ignore_eos=True, temperature=0.0)
    with LLM(args.model, num_threads=1, enable_prefix_caching=False) as llm:
        llm.generate(prompts[:2], SamplingParams(max_tokens=2))
        begin = time.perf_counter()
        llm.generate(prompts, params)
        return time.perf_counter() - begin


def in_a_process(args: argparse.Namespace) -> float:
    command = [sys.executable, __file__, *sys.argv[1:], "--only-offline"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=_keep_to_one_core)
    return float(done.stdout.split()[-1])


def _keep_to_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=40_000)
    parser.add_argument("--only-offline", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only_offline:
        print(offline(args))
        return 0
    options = [
        "--dataset", "random", "--num-prompts", str(args.streams), "--random-input-len", str(args.input_len),
        "--random-output-len", str(args.output_len), "--random-vocab-size", str(args.vocab_size), "--ignore-eos",
        "--request-rate", "inf", "--warmup", "2",
    ]  # fmt: skip
    num_tokens = args.streams * args.output_len
    plain, http, p99 = [], [], []
    command = fastpaged_command(args.model, PORT, "--num-threads", "1", "--no-enable-prefix-caching")
    with served(command, PORT) as process:
        for number in range(args.rounds):
            plain.append(num_tokens / in_a_process(args))
            found = load(PORT, options, cpu=max(os.sched_getaffinity(0)))
            http.append(found["output_throughput"])
            p99.append(found["p99_itl_ms"])
            print(f"round {number + 1}: offline {plain[-1]:.1f}, served {http[-1]:.1f} tokens/s", flush=True)
        before = cpu_seconds(process.pid)
        time.sleep(10.0)
        idle = (cpu_seconds(process.pid) - before) / 10.0
    step = 1000 * args.streams / statistics.median(plain)
    print(f"served / offline: {statistics.median(http) / statistics.median(plain):.3f} (medians; at least 0.90 wanted)")
    print(f"p99 between tokens: {statistics.median(p99):.1f} ms, a step {step:.1f} ms (at most twice wanted)")
    print(f"an idle server: {idle:.2%} of a core (below 1 % wanted)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
