"""GPT-NeoX against transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests


def config(**changes: Any) -> Any:
    sizes = {"vocab_size": 199, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 3}
    return transformers.GPTNeoXConfig(**(sizes | {"num_attention_heads": 4, "intermediate_size": 96} | changes))


def rope(theta: float, share: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}


CASES = {
    "as published": Case(
        config(),
        (
            "scores a tenth too large",
            "no rotation",
            "a rotation a tenth too slow",
            "no bias",
            "no norm bias",
            "another activation",
        ),
    ),
    "whole heads rotated, one after the other": Case(
        config(use_parallel_residual=False, rope_parameters=rope(100.0, 1.0)), ("a rotation a tenth too slow",)
    ),
    "tied, no attention bias, gelu_fast": Case(
        config(
            tie_word_embeddings=True, attention_bias=False, hidden_act="gelu_fast", rope_parameters=rope(500.0, 0.5)
        ),
        ("no bias", "another activation"),
    ),
}

(
    test_torch_ops_give_the_logits_of_transformers,
    test_the_graph_gives_the_logits_of_transformers_on_every_op_table,
    test_the_tolerance_sees_every_mistake,
) = family_tests(CASES)
