"""OPT against transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import Case, family_tests


def config(**changes: Any) -> Any:
    sizes = {"vocab_size": 199, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 3}
    return transformers.OPTConfig(**(sizes | {"num_attention_heads": 4, "ffn_dim": 96} | changes))


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
    "galactica: gelu, no biases": Case(
        config(activation_function="gelu", enable_bias=False), ("no norm bias", "another activation")
    ),
    "untied": Case(config(tie_word_embeddings=False), ("no bias",)),
}

(
    test_torch_ops_give_the_logits_of_transformers,
    test_the_graph_gives_the_logits_of_transformers_on_every_op_table,
    test_the_tolerance_sees_every_mistake,
) = family_tests(CASES)
