"""Transformers: `generate` in bfloat16; several requests go in batches of like lengths, padded on the left."""

from __future__ import annotations

import argparse
import time
from typing import Any

import adapter

_BATCH = 16


class FirstToken:
    """A streamer that only notes when the first token came: the prompt is put first, then each token."""

    def __init__(self) -> None:
        self.time: float | None = None
        self._num_puts = 0

    def put(self, value: object) -> None:
        """Called by generate."""
        self._num_puts += 1
        if self._num_puts == 2:
            self.time = time.perf_counter()

    def end(self) -> None:
        """Called by generate."""


class Transformers(adapter.Engine):
    """One model for all workloads."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        torch.set_num_threads(args.threads)
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
        self._model: Any = model.eval()

    def prepare(self, requests: adapter.Requests) -> str:
        """Nothing depends on the requests."""
        batches = f"batches of {_BATCH}" if len(requests) > 1 else "one request"
        return f"transformers {self._transformers.__version__}, torch {self._torch.__version__} (generate, {batches})"

    def run(self, requests: adapter.Requests) -> adapter.Run:
        """Batches of the requests in order of their lengths, so that few rows run on for nothing."""
        begin = time.perf_counter()
        order = sorted(range(len(requests)), key=lambda index: requests[index]["out"])
        tokens: list[list[int]] = [[] for _ in requests]
        clock = FirstToken()
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            for index, row in zip(part, self._generate([requests[index] for index in part], clock), strict=True):
                tokens[index] = row[: requests[index]["out"]]
        wall_s = time.perf_counter() - begin
        return adapter.Run(wall_s, clock.time - begin if clock.time is not None else None, tokens)

    def _generate(self, requests: adapter.Requests, clock: FirstToken) -> list[list[int]]:
        width = max(len(request["prompt"]) for request in requests)
        padding = [width - len(request["prompt"]) for request in requests]
        ids = [[0] * pad + request["prompt"] for pad, request in zip(padding, requests, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        num_new = max(request["out"] for request in requests)
        with self._torch.inference_mode():
            output = self._model.generate(
                input_ids=self._torch.tensor(ids),
                attention_mask=self._torch.tensor(mask),
                max_new_tokens=num_new,
                min_new_tokens=num_new,
                do_sample=False,
                pad_token_id=0,
                streamer=clock if len(requests) == 1 else None,
            )
        rows: list[list[int]] = output[:, width:].tolist()
        return rows


if __name__ == "__main__":
    arguments = adapter.parser("transformers behind the adapters' protocol").parse_args()
    adapter.serve(lambda: Transformers(arguments))
