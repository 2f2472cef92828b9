"""The Llama-like families from GGUF files, against transformers and the folders they were made from."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from models import test_llama_scaling, test_mistral, test_phi3, test_qwen
from models.oracle import TOLERANCE, distance, tiny_model, torch_logits, transformers_logits
from weights.converted_gguf import write_converted

from fastpaged.weights.checkpoint import open_checkpoint

CONFIGS = {
    **{
        ("llama", name): case.config
        for name, case in test_llama_scaling.CASES.items()
        if "all its settings" not in name
    },
    ("llama", "Mistral"): test_mistral.CASES["without a window"].config,
    ("qwen2", "plain"): test_qwen.CASES["Qwen 2"].config,
    ("qwen2", "yarn"): test_qwen.CASES["Qwen 2, yarn"].config,
    ("qwen3", "plain"): test_qwen.CASES["Qwen 3"].config,
    ("qwen3", "heads of 128"): transformers.Qwen3Config(**test_qwen.SMALL, head_dim=128),  # transformers know no other
    **{("phi3", name): case.config for name, case in test_phi3.CASES.items() if "their own" not in name},
}


@pytest.mark.parametrize(("architecture", "name"), CONFIGS)
def test_a_gguf_file_has_the_logits_of_the_folder_it_was_made_from(
    architecture: str, name: str, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "folder", CONFIGS[architecture, name])
    file = write_converted(model.folder, tmp_path / "model.gguf", architecture)
    assert distance(torch_logits(file, model.prompts), model.logits) < TOLERANCE
    from_folder, from_file = open_checkpoint(model.folder).config, open_checkpoint(file).config
    for field in ("vocab_size", "hidden_size", "head_dim", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(from_file, field) == getattr(from_folder, field)


@pytest.mark.parametrize(
    ("architecture", "name"), [("llama", "plain"), ("qwen2", "plain"), ("qwen3", "heads of 128"), ("phi3", "plain")]
)
def test_transformers_reads_such_a_file_alike(architecture: str, name: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "folder", CONFIGS[architecture, name])
    write_converted(model.folder, tmp_path / "model.gguf", architecture)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    assert distance(transformers_logits(oracle, model.prompts), model.logits) < TOLERANCE
