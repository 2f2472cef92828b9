"""Masks, biases and penalties in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sampling.sampler_model import Logits

from fastpaged._core import SamplingParams

PLAIN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 5, "num_logprobs": 3}


@dataclass(frozen=True)
class Edits:
    """The arguments of SamplingParams that change logits."""

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    end_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    def params(self, **changes: Any) -> SamplingParams:
        given = {**vars(self), "logit_bias": dict(self.logit_bias), **PLAIN, **changes}
        return SamplingParams(**given)

    def applied_to(self, logits: Logits, prompt: Sequence[int], output: Sequence[int]) -> Logits:
        """Whole arrays at a time, in float32."""
        row = logits.copy()
        for token_id, bias in self.logit_bias:
            row[token_id] += np.float32(bias)
        barred = np.zeros(row.size, bool)
        if self.allowed_token_ids is not None:
            barred[:] = True
            barred[list(self.allowed_token_ids)] = False
        if len(output) < self.min_tokens:
            barred[list(self.end_token_ids)] = True
        for word in self.bad_words:
            if tuple(output[max(0, len(output) - len(word) + 1) :]) == word[:-1]:
                barred[word[-1]] = True
        counts = np.bincount(np.array(output, np.int64), minlength=row.size).astype(np.float32)
        seen = np.bincount(np.array([*prompt, *output], np.int64), minlength=row.size) > 0
        penalty = np.float32(self.repetition_penalty)
        row = np.where(seen, np.where(row > 0, row / penalty, row * penalty), row)
        row -= np.float32(self.frequency_penalty) * counts
        row -= np.float32(self.presence_penalty) * (counts > 0)
        edited: Logits = np.where(barred, np.float32(-math.inf), row)
        return edited
