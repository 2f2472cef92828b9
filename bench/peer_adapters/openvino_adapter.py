"""OpenVINO GenAI: its continuous batching, in bfloat16 (weights may lie in float16: it converts), KV in bfloat16."""

from __future__ import annotations

import argparse
import time
from typing import Any

import adapter

_MAX_NUM_BATCHED_TOKENS = 2048


class OpenVino(adapter.Engine):
    """A pipeline for each workload. Its prefix cache cannot be emptied: where it is of use, each run has a new one."""

    def __init__(self, args: argparse.Namespace) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._args = args
        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        self._pipeline: Any = None
        self._shares = False
        self._max_num_seqs = 1

    def prepare(self, requests: adapter.Requests) -> str:
        """A pipeline with room for all requests at once."""
        self._shares = adapter.share_a_prefix(requests)
        self._max_num_seqs = len(requests)
        self._make()
        caching = "prefix caching, " if self._shares else ""
        version = self._genai.get_version()
        return f"OpenVINO GenAI {version} (continuous batching, {caching}bf16, KV {self._args.kv_precision})"

    def fresh(self) -> None:
        """A new pipeline, woken up by a few tokens, where prefixes are kept."""
        if self._shares:
            self._make()
            self.run([{"prompt": list(range(100, 116)), "out": 4}])

    def run(self, requests: adapter.Requests) -> adapter.Run:
        """Stepped by hand, to see the first token of a lone request."""
        begin = time.perf_counter()
        handles = [self._add(index, request) for index, request in enumerate(requests)]
        ttft_s = None
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            if ttft_s is None and len(requests) == 1 and handles[0].can_read():
                ttft_s = time.perf_counter() - begin
        wall_s = time.perf_counter() - begin
        return adapter.Run(wall_s, ttft_s, [list(handle.read_all()[0].generated_ids) for handle in handles])

    def _add(self, index: int, request: Any) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request["out"]
        config.ignore_eos = True
        config.do_sample = False
        prompt = self._openvino.Tensor(self._numpy.array([request["prompt"]], dtype=self._numpy.int64))
        return self._pipeline.add_request(index, prompt, config)

    def _make(self) -> None:
        self._pipeline = None  # before the next one takes its memory
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = self._args.kv_gb
        scheduler.max_num_seqs = self._max_num_seqs
        scheduler.max_num_batched_tokens = _MAX_NUM_BATCHED_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = self._shares
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "INFERENCE_NUM_THREADS": self._args.threads,
            "KV_CACHE_PRECISION": self._args.kv_precision,
        }
        self._pipeline = self._genai.ContinuousBatchingPipeline(
            self._args.exported, scheduler, "CPU", properties=properties
        )


if __name__ == "__main__":
    options = adapter.parser("OpenVINO GenAI behind the adapters' protocol")
    options.add_argument("--exported", required=True, help="the model as `optimum-cli export openvino` writes it")
    options.add_argument("--kv-gb", type=int, default=4)
    options.add_argument("--kv-precision", default="bf16", help="its own default for bf16 is 8 bits (default: bf16)")
    arguments = options.parse_args()
    adapter.serve(lambda: OpenVino(arguments))
