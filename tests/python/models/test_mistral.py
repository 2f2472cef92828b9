"""Mistral against transformers, and what its config.json may say."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests

SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 97,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
WINDOW = ("no window", "a window one key too wide", "no rotation")

CASES = {
    "windowed": Case(transformers.MistralConfig(**SMALL, sliding_window=9), WINDOW),
    "without a window": Case(
        transformers.MistralConfig(**SMALL, sliding_window=None, head_dim=48), ("a window in every layer",)
    ),
    "Ministral": Case(
        transformers.MinistralConfig(
            **SMALL,
            head_dim=16,
            sliding_window=9,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        ),
        (*WINDOW, "a window in every layer"),
    ),
}

test_torch_ops_give_the_logits_of_transformers, test_the_worker_gives_them, test_mistakes_are_seen = family_tests(CASES)
