"""Phi-3 against transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests

HALF = 12  # frequencies of a head of 48, half of which is rotated


def phi3(**settings: Any) -> transformers.Phi3Config:
    small = {
        "vocab_size": 101,
        "hidden_size": 96,
        "intermediate_size": 97,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    return transformers.Phi3Config(**(small | settings))


def longrope(original_positions: int, **settings: Any) -> dict[str, Any]:
    return {
        "original_max_position_embeddings": original_positions,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0 + 0.05 * i for i in range(HALF)],
            "long_factor": [2.0 + 0.3 * i for i in range(HALF)],
            **settings,
        },
    }


ROTATION = ("no rotation", "a rotation a tenth too slow")
# Prompts are of 6 to 37 tokens: those that need the long factors all do, where transformers choose them by prompt.
CASES = {
    "plain": Case(phi3(), (*ROTATION, "another gate")),
    "windowed": Case(phi3(sliding_window=9, num_key_value_heads=2), ("no window", "a window one key too wide")),
    "short factors": Case(phi3(**longrope(64)), ROTATION),
    "long factors": Case(phi3(**longrope(5)), ROTATION),
    "long factors with a factor of their own": Case(phi3(**longrope(5, attention_factor=1.4)), ROTATION),
}

test_torch_ops_give_the_logits_of_transformers, test_the_worker_gives_them, test_mistakes_are_seen = family_tests(CASES)
