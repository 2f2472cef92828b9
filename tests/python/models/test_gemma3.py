"""Gemma 3 against transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests


def config(**changes: Any) -> Any:
    sizes = {
        "vocab_size": 199,
        "max_position_embeddings": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 2000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    }
    return transformers.Gemma3TextConfig(**(sizes | changes))


CASES = {
    "windows and two rotations": Case(
        config(),
        (
            "scores a tenth too large",
            "no rotation",
            "a rotation a tenth too slow",
            "no head norm",
            "no window",
            "a window one key too wide",
            "a window in every layer",
            "embeddings not scaled",
            "another gate",
        ),
    ),
    "logits capped, untied": Case(
        config(final_logit_softcapping=3.0, tie_word_embeddings=False), ("no soft cap of logits",)
    ),
    "heads of 256, one KV head, every sixth layer full": Case(
        config(head_dim=256, num_key_value_heads=1, num_hidden_layers=7, layer_types=None),
        ("a window one key too wide", "a window in every layer"),
    ),
}

(
    test_torch_ops_give_the_logits_of_transformers,
    test_the_graph_gives_the_logits_of_transformers_on_every_op_table,
    test_the_tolerance_sees_every_mistake,
) = family_tests(CASES)
