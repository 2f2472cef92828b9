"""The same model as a Hugging Face folder and as llama.cpp's converter rearranges it: the same logits, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import safetensors.numpy
import transformers
from models.gguf_twin import write_twin
from models.oracle import distance, tiny_model, torch_logits

from fastpaged.errors import ModelFormatError
from fastpaged.weights import open_checkpoint

SIZES: dict[str, Any] = {"vocab_size": 199, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 7}
HEADS: dict[str, Any] = SIZES | {"num_attention_heads": 4}
GEMMA = HEADS | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}

CONFIGS = {
    "Gemma 3": transformers.Gemma3TextConfig(**GEMMA, sliding_window=8),
    "Gemma 3, logits capped, untied": transformers.Gemma3TextConfig(
        **GEMMA, sliding_window=5, final_logit_softcapping=3.0, tie_word_embeddings=False
    ),
    "GPT-2": transformers.GPT2Config(vocab_size=199, n_positions=64, n_embd=64, n_layer=2, n_head=4),
    "GPT-NeoX": transformers.GPTNeoXConfig(**HEADS, intermediate_size=96),
    "GPT-NeoX, one after the other": transformers.GPTNeoXConfig(
        **HEADS, intermediate_size=96, use_parallel_residual=False
    ),
    "Falcon 7b": transformers.FalconConfig(**HEADS),
    "Falcon 40b": transformers.FalconConfig(**HEADS | NEW),
    "Falcon 11b": transformers.FalconConfig(**HEADS | NEW, num_ln_in_parallel_attn=1, tie_word_embeddings=False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_model_has_the_logits_of_the_original(name: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "folder", CONFIGS[name])
    path = write_twin(model.folder, tmp_path / "model.gguf")
    assert distance(torch_logits(path, model.prompts), torch_logits(model.folder, model.prompts)) == 0


@pytest.mark.parametrize("name", ["GPT-2", "GPT-NeoX", "Falcon 40b"])
def test_rows_in_blocks_of_few_bits_are_rearranged_whole(name: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "folder", CONFIGS[name])
    path = write_twin(model.folder, tmp_path / "model.gguf", kind="Q8_0")
    assert any(tensor.tensor_type.name == "Q8_0" for tensor in gguf.GGUFReader(path).tensors)
    error = distance(torch_logits(path, model.prompts), torch_logits(model.folder, model.prompts))
    assert 0 < error < 0.5 * np.std(model.logits[0]), "eight bits of precision, and not another model"


def test_a_falcon_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "falcon")
    writer.add_tensor_data_layout("other")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFormatError, match=r"falcon\.tensor_data_layout must be 'jploski', got 'other'"):
        open_checkpoint(path)


def test_opt_is_read_from_no_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "opt")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFormatError, match=r"general\.architecture must be one of .*gemma3.*, got 'opt'"):
        open_checkpoint(path)


def test_a_model_saved_without_its_head_is_the_same_model(tmp_path: Path) -> None:
    """As the first GPT-2 was: names lack their prefix, and masks lie beside the weights."""
    model = tiny_model(tmp_path / "folder", CONFIGS["GPT-2"])
    weights = safetensors.numpy.load_file(model.folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
    folder = tmp_path / "bare"
    folder.mkdir()
    config = json.loads((model.folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(bare, folder / "model.safetensors")
    assert distance(torch_logits(folder, model.prompts), torch_logits(model.folder, model.prompts)) == 0
