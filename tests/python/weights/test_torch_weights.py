"""A model with torch tensors: the file's values, and the rounding of the recorded graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from forced import prefix_logits
from models.step_arrays import Chunk, block_tables, step_arrays
from tiny_model import tiny_config, tiny_weights, write_tiny_llama

from fastpaged.config import EngineConfig
from fastpaged.errors import ModelFormatError
from fastpaged.ops.op_set import BatchInputs
from fastpaged.ops.torch_batch import TorchBatch
from fastpaged.ops.torch_ops import TorchOps
from fastpaged.weights import open_checkpoint
from fastpaged.weights.torch_weights import load_torch_model
from fastpaged.worker.worker import Worker

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 45)]


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_tensors_hold_what_the_file_holds(dtype: Any, torch_dtype: torch.dtype, tmp_path: Path) -> None:
    weights = {name: torch.from_numpy(weight) for name, weight in tiny_weights(seed=3, tied=True).items()}
    model: Any = load_torch_model(write_tiny_llama(tmp_path, seed=3, tied=True, tokenizer=False), dtype=dtype)
    layer, prefix = model.weights.layers[1], "model.layers.1."
    assert torch.equal(model.weights.embed, weights["model.embed_tokens.weight"].to(torch_dtype))
    assert torch.equal(model.weights.lm_head, model.weights.embed)
    qkv = torch.cat([weights[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(layer.qkv, qkv.to(torch_dtype)) and layer.qkv.dtype == torch_dtype
    assert torch.equal(layer.mlp_norm, weights[prefix + "post_attention_layernorm.weight"])
    assert model.weights.rope.dtype == torch.float32
    assert len(model.weights.rope) == tiny_config()["max_position_embeddings"]


def embed_of(model: Any) -> torch.Tensor:
    embed: torch.Tensor = model.weights.embed
    return embed


def test_an_open_checkpoint_stays_open_and_its_errors_are_those_of_every_loader(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_llama(tmp_path / "tied", tied=True, tokenizer=False))
    first, second = (embed_of(load_torch_model(checkpoint, max_model_len=9)) for _ in range(2))
    assert torch.equal(first, second)
    checkpoint.close()

    folder = write_tiny_llama(tmp_path / "untied", tied=True, tokenizer=False)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    with pytest.raises(ModelFormatError, match=r"lm_head\.weight.*is missing"):
        load_torch_model(folder)


def torch_logits(folder: Path, dtype: Any) -> Any:
    model = load_torch_model(folder, dtype=dtype, max_model_len=len(PROMPT))
    c = model.config
    tables, num_blocks = block_tables([len(PROMPT)], 4, seed=0)
    shape = (num_blocks, c.num_layers, 2, c.num_kv_heads, 4, c.head_dim)
    batch = TorchBatch.of(step_arrays([Chunk(0, 0, len(PROMPT))], [PROMPT], tables, 4))
    op = TorchOps(batch, torch.full(shape, torch.nan, dtype=getattr(torch, dtype)))
    return model.forward(op, BatchInputs()).numpy()


def test_in_bfloat16_it_lies_nearer_to_the_recorded_graph_than_to_float32(tmp_path: Path) -> None:
    """It rounds where the graph rounds: what is left of the difference is sums in another order."""
    folder = write_tiny_llama(tmp_path, seed=3, tokenizer=False)
    config = EngineConfig(
        model=str(folder), isa="scalar", dtype="bfloat16", max_model_len=64, num_blocks=400, num_threads=2
    )
    recorded = prefix_logits(Worker(config), config, PROMPT)
    computed, exact = torch_logits(folder, "bfloat16"), torch_logits(folder, "float32")
    assert np.mean((computed - recorded) ** 2) < 0.02 * np.mean((computed - exact) ** 2)
