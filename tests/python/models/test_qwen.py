"""Qwen 2 and 3 against transformers."""

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
SLIDING: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 7}
WINDOW = ("no window", "a window one key too wide", "a window in every layer")
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

CASES = {
    "Qwen 2": Case(transformers.Qwen2Config(**SMALL, tie_word_embeddings=True), ("no bias", "a window in every layer")),
    "Qwen 2, windows in the upper layers": Case(
        transformers.Qwen2Config(**SMALL, **SLIDING, max_window_layers=2), WINDOW
    ),
    "Qwen 2, windows by layer": Case(transformers.Qwen2Config(**SMALL, **SLIDING, layer_types=TYPES), WINDOW),
    "Qwen 2, yarn": Case(
        transformers.Qwen2Config(
            **SMALL,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "rope_theta": 1000.0,
            },
        ),
        ("a rotation a tenth too slow",),
    ),
    "Qwen 3": Case(
        transformers.Qwen3Config(**SMALL, head_dim=48, rms_norm_eps=1e-3), ("no head norm", "scores a tenth too large")
    ),
    "Qwen 3, biases and windows": Case(
        transformers.Qwen3Config(**SMALL, **SLIDING, head_dim=32, attention_bias=True, max_window_layers=1),
        ("no head norm", "no bias", *WINDOW),
    ),
}

test_torch_ops_give_the_logits_of_transformers, test_the_worker_gives_them, test_mistakes_are_seen = family_tests(CASES)
