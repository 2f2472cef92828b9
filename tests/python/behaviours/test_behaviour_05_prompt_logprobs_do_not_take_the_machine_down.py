"""Elsewhere: the logprobs of a long prompt run out of memory under load, and everybody's request dies."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
from server.serving import running_server
from server.step_gate import inner, until

SMALL: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 1.0, "return_token_ids": True}


def test_behaviour_05_all_logprobs_of_a_long_prompt_at_a_full_pool_leave_others_unhurt(tiny_llama: Path) -> None:
    # 64 blocks of 8: the long prompt takes 50, so that the pool is full with four others beside it.
    with running_server(tiny_llama, max_logprobs=-1, max_num_batched_tokens=512) as server:

        def ask(seed: int) -> list[int]:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                body = SMALL | {"prompt": [seed + 5] * 20, "seed": seed}
                ids: list[int] = client.post("/v1/completions", json=body).json()["choices"][0]["token_ids"]
                return ids

        alone = [ask(seed) for seed in range(4)]
        found: dict[int, list[int]] = {}
        most_rows = [0]
        execute = inner(server).worker.execute

        def watched(batch: Any) -> Any:
            most_rows[0] = max(most_rows[0], len(batch.sample_rows))
            return execute(batch)

        inner(server).worker.execute = watched  # type: ignore[method-assign]
        threads = [threading.Thread(target=lambda seed=seed: found.update({seed: ask(seed)})) for seed in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(server.service.calls) > 0)
        prompt = [3 + index % 50 for index in range(400)]
        body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "prompt_logprobs": -1}
        answer = server.client.post("/v1/completions", json=body).json()
        for thread in threads:
            thread.join()
        shown = answer["choices"][0]["prompt_logprobs"]
        vocab_size = inner(server).worker.model_config.vocab_size
        assert len(shown) == 400
        assert shown[0] is None
        assert all(len(entry) == vocab_size for entry in shown[1:])
        assert [found[seed] for seed in range(4)] == alone
        # What is held at once are rows of some tokens, not of the whole prompt.
        assert most_rows[0] <= inner(server).config.max_num_rows
        assert inner(server).config.max_num_rows < inner(server).config.max_num_seqs + 400
        until(lambda: server.engine.progress().num_unfinished == 0)
        assert inner(server).scheduler.num_free_blocks == 64
