"""fastpaged, driven as the peers are: its `LLM`, with the defaults a user gets, but for packed weights on disk: writing
them would take memory bandwidth while others are measured, and leave a file with the user."""

from __future__ import annotations

import argparse
import time

import adapter

import fastpaged


class Fastpaged(adapter.Engine):
    """One LLM for all workloads."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._llm = fastpaged.LLM(
            args.model, num_threads=args.threads, max_num_seqs=args.max_num_seqs, packed_cache=False
        )

    def prepare(self, requests: adapter.Requests) -> str:
        """Nothing depends on the requests."""
        device = self._llm.engine.worker.device
        return f"fastpaged {fastpaged.__version__} ({device.isa}, {device.num_threads} threads)"

    def fresh(self) -> None:
        """Empties the prefix cache."""
        self._llm.reset_prefix_cache()

    def run(self, requests: adapter.Requests) -> adapter.Run:
        """As token ids, without text."""
        prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
        params = [
            fastpaged.SamplingParams(temperature=0, max_tokens=request["out"], ignore_eos=True, detokenize=False)
            for request in requests
        ]
        begin = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        wall_s = time.perf_counter() - begin
        ttft_s = outputs[0].metrics.first_token_latency if len(requests) == 1 else None
        return adapter.Run(wall_s, ttft_s, [output.outputs[0].token_ids for output in outputs])


if __name__ == "__main__":
    options = adapter.parser("fastpaged behind the adapters' protocol")
    options.add_argument("--max-num-seqs", type=int, default=64)
    arguments = options.parse_args()
    adapter.serve(lambda: Fastpaged(arguments))
