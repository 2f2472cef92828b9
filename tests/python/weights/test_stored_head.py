"""A head in the file beside a config that ties it to the embedding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import tiny_weights, write_safetensors, write_tiny_llama

pytest.importorskip("torch")
pytest.importorskip("transformers")

import safetensors.numpy
import safetensors.torch
import torch
import transformers
from models.oracle import TOLERANCE, distance, tiny_model, torch_logits, transformers_logits

from fastpaged.errors import ModelFormatError
from fastpaged.weights import open_checkpoint
from fastpaged.weights.loader import weight_bytes

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
LLAMA: dict[str, Any] = SIZES | {"intermediate_size": 96, "num_key_value_heads": 2}
CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(**LLAMA),
    "qwen2": transformers.Qwen2Config(**LLAMA),
    "gemma3": transformers.Gemma3TextConfig(**LLAMA, head_dim=32, sliding_window=8, query_pre_attn_scalar=32),
    "gpt2": transformers.GPT2Config(
        vocab_size=199, n_embd=64, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=False
    ),
    "opt": transformers.OPTConfig(**SIZES, ffn_dim=96, word_embed_proj_dim=64),
    "falcon": transformers.FalconConfig(**SIZES),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES, intermediate_size=96),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_head_of_its_own_beside_a_tied_config_is_used_as_transformers_uses_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(tmp_path, CONFIGS[name])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = transformers_logits(theirs, model.prompts)
    with caplog.at_level("WARNING", "fastpaged.weights"):
        assert distance(torch_logits(tmp_path, model.prompts), expected) < TOLERANCE
    (record,) = (record for record in caplog.records if record.name.startswith("fastpaged."))
    assert "tie_word_embeddings" in record.getMessage() and "differs from" in record.getMessage()


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "opt", "falcon"])
def test_a_family_that_ties_where_its_config_says_nothing_uses_a_stored_head_too(name: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, CONFIGS[name])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.pop("tie_word_embeddings", None)
    path.write_text(json.dumps(config))
    assert distance(torch_logits(tmp_path, model.prompts), model.logits) < TOLERANCE


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("changed", [False, True])
def test_a_head_in_another_dtype_is_the_embedding_if_its_numbers_are(
    dtype: Any, changed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In float16 and float32 beside each other: no number of either is lost in float32."""
    folder = write_tiny_llama(tmp_path, tokenizer=False, tied=True)
    weights = {name: weight.astype(np.float16).astype(np.float32) for name, weight in tiny_weights(tied=True).items()}
    head = weights["model.embed_tokens.weight"].astype(dtype)
    weights["model.embed_tokens.weight"] = head.astype(np.float32 if dtype == np.float16 else np.float16)
    if changed:
        head[-1, -1] += 1
    safetensors.numpy.save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors")
    config = open_checkpoint(folder).config
    assert config.tie_word_embeddings is not changed
    assert len(caplog.records) == changed


def test_bfloat16_beside_float32_is_compared_by_numbers(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tokenizer=False, tied=True)
    embedding = tiny_weights(tied=True)["model.embed_tokens.weight"]
    weights = {name: torch.from_numpy(weight) for name, weight in tiny_weights(tied=True).items()}
    weights["lm_head.weight"] = torch.from_numpy(embedding).to(torch.bfloat16)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert open_checkpoint(folder).config.tie_word_embeddings


def test_the_last_value_of_a_large_head_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fastpaged.weights.stored_head._PIECE_VALUES", 1000)
    folder = write_tiny_llama(tmp_path, tokenizer=False, tied=True)
    weights = tiny_weights(tied=True)
    head = weights["model.embed_tokens.weight"].copy()
    for expected in (True, False):
        write_safetensors(folder / "model.safetensors", weights | {"lm_head.weight": head})
        config = open_checkpoint(folder).config
        assert config.tie_word_embeddings is expected
        head[-1, -1] = -head[-1, -1]
    assert weight_bytes(config, "float32") == 4 * sum(weight.size for weight in [*weights.values(), head])


def test_a_stored_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, tokenizer=False, tied=True)
    weights = tiny_weights(tied=True) | {"lm_head.weight": np.zeros((301, 64), np.float32)}
    write_safetensors(folder / "model.safetensors", weights)
    with pytest.raises(ModelFormatError, match=r"'lm_head.weight' must have shape \[300, 64\], got \[301, 64\]"):
        torch_logits(folder, [[1]])
