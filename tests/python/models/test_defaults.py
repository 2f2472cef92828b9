"""Keys that transformers ignores or has a value of its own for: edited config.json files, both sides reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from models.oracle import SEEN, TOLERANCE, distance, tiny_model, torch_logits, transformers_logits

HEADS: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": None,
}
LLAMA: dict[str, Any] = HEADS | {"intermediate_size": 96, "num_key_value_heads": 2}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}

# The model as it was saved, what is laid over its config.json (None: the key goes), whether that changes its logits.
CASES: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "GPT-NeoX, KV heads": (
        transformers.GPTNeoXConfig(**HEADS, intermediate_size=96),
        {"num_key_value_heads": 2},
        False,
    ),
    "GPT-NeoX, head size": (transformers.GPTNeoXConfig(**HEADS, intermediate_size=96), {"head_dim": 32}, True),
    "OPT, KV heads": (
        transformers.OPTConfig(**HEADS, ffn_dim=96, word_embed_proj_dim=64),
        {"num_key_value_heads": 2},
        False,
    ),
    "Mistral without a window": (transformers.MistralConfig(**LLAMA, sliding_window=9), {"sliding_window": None}, True),
    "Phi-3, original context": (
        transformers.Phi3Config(
            **LLAMA, max_position_embeddings=8192, original_max_position_embeddings=8, rope_parameters=LONGROPE
        ),
        {"original_max_position_embeddings": None},
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edited_config_means_what_it_means_to_transformers(name: str, tmp_path: Path) -> None:
    saved, changes, matters = CASES[name]
    model = tiny_model(tmp_path, saved)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in config.items() if value is not None or key not in changes})
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = transformers_logits(theirs, model.prompts)
    assert (distance(expected, model.logits) > SEEN) is matters
    assert distance(torch_logits(tmp_path, model.prompts), expected) < TOLERANCE
