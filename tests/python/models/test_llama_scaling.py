"""Llama against transformers: scaled positions, biases, heads of their own size."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests

SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 96,
    "intermediate_size": 97,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SCALED = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def llama(**settings: Any) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(**(SMALL | settings))


CASES = {
    "plain": Case(
        llama(rms_norm_eps=1e-3),
        ("no rotation", "a rotation a tenth too slow", "scores a tenth too large", "another gate"),
    ),
    "tied, one kv head of another size": Case(
        llama(tie_word_embeddings=True, num_key_value_heads=1, head_dim=80), ("no rotation",)
    ),
    "biases": Case(llama(attention_bias=True, mlp_bias=True), ("no bias",)),
    "linear": Case(llama(rope_parameters=SCALED | {"rope_type": "linear"}), ("a rotation a tenth too slow",)),
    "llama3": Case(
        llama(rope_parameters=SCALED | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        ("a rotation a tenth too slow",),
    ),
    "yarn": Case(llama(rope_parameters=SCALED | {"rope_type": "yarn"}), ("a rotation a tenth too slow",)),
    "yarn with all its settings": Case(
        llama(
            rope_parameters=SCALED
            | {"rope_type": "yarn", "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}
        ),
        ("a rotation a tenth too slow",),
    ),
}

test_torch_ops_give_the_logits_of_transformers, test_the_worker_gives_them, test_mistakes_are_seen = family_tests(CASES)
