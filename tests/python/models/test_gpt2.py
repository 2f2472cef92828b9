"""GPT-2 against transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests


def config(**changes: Any) -> Any:
    sizes = {"vocab_size": 199, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4}
    return transformers.GPT2Config(**(sizes | changes))


CASES = {
    "as published": Case(
        config(),
        (
            "scores a tenth too large",
            "no bias",
            "no norm bias",
            "no learned positions",
            "positions two too early",
            "another activation",
        ),
    ),
    "gelu with erf": Case(config(activation_function="gelu"), ("another activation",)),
    "scores scaled by layer, untied, a narrow MLP": Case(
        config(scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False, n_inner=96),
        ("scores a tenth too large",),
    ),
    "scores not scaled by the head size": Case(config(scale_attn_weights=False), ("scores a tenth too large",)),
}

(
    test_torch_ops_give_the_logits_of_transformers,
    test_the_graph_gives_the_logits_of_transformers_on_every_op_table,
    test_the_tolerance_sees_every_mistake,
) = family_tests(CASES)
