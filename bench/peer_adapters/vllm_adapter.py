"""vLLM on the CPU: its offline LLM in this very process, compiled, prefix caching on (its default) and emptied.

With two cores, its engine-core and worker processes poll on cores that its OpenMP threads need: all in one process is
what it is fastest with. Its guide for CPUs asks for tcmalloc and Intel's OpenMP, so both are preloaded where found.
"""

from __future__ import annotations

import argparse
import ctypes.util
import glob
import os
import sys
import time
from typing import Any

import adapter

_MAX_MODEL_LEN = 8192  # one setting for all workloads: what it compiles depends on it
_MAX_NUM_SEQS = 64


class Vllm(adapter.Engine):
    """One LLM for all workloads."""

    def __init__(self, args: argparse.Namespace) -> None:
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            model=args.model,
            dtype="bfloat16",
            max_model_len=_MAX_MODEL_LEN,
            max_num_seqs=_MAX_NUM_SEQS,
            enable_prefix_caching=True,
            disable_log_stats=False,  # without them there is no time to the first token
            distributed_executor_backend="uni",
            seed=0,
        )

    def prepare(self, requests: adapter.Requests) -> str:
        """Nothing depends on the requests."""
        preloaded = " and ".join(os.path.basename(name) for name in os.environ["LD_PRELOAD"].split(":"))
        return f"vLLM {self._vllm.__version__} (CPU, in process, compiled, with {preloaded or 'nothing'} preloaded)"

    def fresh(self) -> None:
        """Empties the prefix cache."""
        self._llm.reset_prefix_cache()

    def run(self, requests: adapter.Requests) -> adapter.Run:
        """As token ids, without text."""
        prompts: Any = [{"prompt_token_ids": request["prompt"]} for request in requests]
        params = [
            self._vllm.SamplingParams(temperature=0.0, max_tokens=request["out"], ignore_eos=True, detokenize=False)
            for request in requests
        ]
        begin = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        wall_s = time.perf_counter() - begin
        ttft_s = outputs[0].metrics.first_token_latency if len(requests) == 1 else None
        return adapter.Run(wall_s, ttft_s, [list(output.outputs[0].token_ids) for output in outputs])


def start_with_settings(num_threads: int, kv_gb: int) -> None:
    """Starts this script over with the environment that vLLM reads at its start, unless it has it already."""
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        return
    cpus = sorted(os.sched_getaffinity(0))[:num_threads]
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    openmp = glob.glob(os.path.join(sys.prefix, "lib", "**", "libiomp5.so"), recursive=True)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cpus)),
        VLLM_CPU_NUM_OF_RESERVED_CPU="0",
        VLLM_CPU_KVCACHE_SPACE=str(kv_gb),
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        KMP_BLOCKTIME="1",
        LD_PRELOAD=":".join([*([tcmalloc] if tcmalloc else []), *openmp[:1]]),
    )
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    options = adapter.parser("vLLM behind the adapters' protocol")
    options.add_argument("--kv-gb", type=int, default=4)
    arguments = options.parse_args()
    start_with_settings(arguments.threads, arguments.kv_gb)
    adapter.serve(lambda: Vllm(arguments))
