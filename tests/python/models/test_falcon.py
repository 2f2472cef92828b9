"""Falcon against transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import torch
import transformers
from models.oracle import Case, family_tests
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

from fastpaged.models.alibi import alibi_slopes


def config(**changes: Any) -> Any:
    sizes = {"vocab_size": 199, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 3}
    return transformers.FalconConfig(**(sizes | {"num_attention_heads": 4} | changes))


# Of so many heads the slopes are powers of two: with others transformers rounds slope x position to bfloat16.
RW = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}

CASES = {
    "7b: one KV head, one norm": Case(
        config(), ("scores a tenth too large", "no rotation", "no norm bias", "another activation")
    ),
    "40b: grouped heads, two norms": Case(
        config(**NEW, ffn_hidden_size=96), ("a rotation a tenth too slow", "no norm bias")
    ),
    "11b: grouped heads, one norm, untied": Case(
        config(**NEW, num_ln_in_parallel_attn=1, tie_word_embeddings=False), ("no rotation",)
    ),
    "rw: slopes, biases, one after the other": Case(
        config(**RW), ("scores a tenth too large", "no slopes", "slopes of other heads", "no bias", "no norm bias")
    ),
    "rw with six heads, no power of two": Case(
        config(**RW | {"hidden_size": 96, "num_attention_heads": 6}), ("no slopes", "slopes of other heads")
    ),
    "every head its own k and v, side by side": Case(config(multi_query=False, bias=True), ("no rotation", "no bias")),
}

(
    test_torch_ops_give_the_logits_of_transformers,
    test_the_graph_gives_the_logits_of_transformers_on_every_op_table,
    test_the_tolerance_sees_every_mistake,
) = family_tests(CASES)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 32, 71])
def test_slopes_are_those_of_transformers(num_heads: int) -> None:
    distances = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), num_heads, torch.float32)
    assert np.array_equal(alibi_slopes(num_heads, 1.0), distances[:, 0, 1].numpy())
