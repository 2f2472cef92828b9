"""The requests of the server's soak: of every kind, each with the answer that it has offline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastpaged import LLM, SamplingParams

_WORDS = (
    "the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "was", "time", "for", "some", "tea", "with", "honey",
    "in", "the", "old", "house", "by", "the", "sea",
)  # fmt: skip


@dataclass
class SoakRequest:
    """body: of POST /v1/completions, less what says whether it streams. texts: of its choices."""

    body: dict[str, Any]
    params: SamplingParams
    texts: list[str] = field(default_factory=list)

    @property
    def may_stream(self) -> bool:
        return not self.params.use_beam_search


def make_requests(count: int, seed: int) -> list[SoakRequest]:
    """Greedy, sampled, several samples, the best of several, beams, logprobs and stop strings; short and long."""
    rng = random.Random(seed)
    return [_request(rng) for _ in range(count)]


def _request(rng: random.Random) -> SoakRequest:
    prompt = " ".join(rng.choices(_WORDS, k=rng.choice((2, 5, 20, 60, 150))))
    fields: dict[str, Any] = {"max_tokens": rng.choice((1, 4, 16, 48, 96)), "ignore_eos": rng.random() < 0.5}
    kind = rng.random()
    if kind < 0.2:
        fields |= {"temperature": 0.0}
    elif kind < 0.6:
        fields |= {"temperature": rng.choice((0.7, 1.0)), "seed": rng.randrange(2**32), "top_p": 0.95}
    elif kind < 0.8:
        fields |= {"n": rng.choice((2, 3, 4)), "seed": rng.randrange(2**32)}
    elif kind < 0.9:
        fields |= {"n": 2, "best_of": 4, "seed": rng.randrange(2**32)}
    else:
        fields |= {"use_beam_search": True, "n": rng.choice((2, 3)), "temperature": 0.0, "max_tokens": 16}
    if rng.random() < 0.2:
        fields["logprobs"] = 2
    if rng.random() < 0.2:
        fields["stop"] = rng.sample(["the", "a ", "\n", "e"], 2)
    return SoakRequest({"prompt": prompt, **fields}, SamplingParams(**fields))


def answer_offline(llm: LLM, requests: Sequence[SoakRequest]) -> None:
    """Fills their texts."""
    outputs = llm.generate([request.body["prompt"] for request in requests], [request.params for request in requests])
    for request, output in zip(requests, outputs, strict=True):
        request.texts = [answer.text for answer in output.outputs]
