"""Learned positions, slopes, capped logits, two rotations, attention beside the MLP: the same bits whatever the chunks,
the company and the blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isas import EVERY_ISA

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from forced import last_logits
from models.oracle import TinyModel, tiny_model

from fastpaged.config import EngineConfig
from fastpaged.worker.worker import Worker

HEADS: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6}
SIZES: dict[str, Any] = HEADS | {"vocab_size": 151, "max_position_embeddings": 64}

CONFIGS = {
    "GPT-2": transformers.GPT2Config(vocab_size=151, n_positions=64, n_embd=48, n_layer=2, n_head=3),
    "GPT-NeoX": transformers.GPTNeoXConfig(**SIZES, intermediate_size=80),
    "Falcon with slopes": transformers.FalconConfig(
        **SIZES, alibi=True, multi_query=False, parallel_attn=False, bias=True
    ),
    "Falcon with one KV head": transformers.FalconConfig(**SIZES),
    "Gemma 3": transformers.Gemma3TextConfig(
        **SIZES,
        head_dim=48,
        num_key_value_heads=2,
        intermediate_size=80,
        sliding_window=11,
        layer_types=["sliding_attention", "full_attention"],
        final_logit_softcapping=5.0,
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return tiny_model(tmp_path_factory.mktemp("tiny"), CONFIGS[request.param], lengths=(45, 1, 17, 32))


def logits(folder: Path, prompts: list[list[int]], isa: str, dtype: str, **changes: int) -> bytes:
    """Of the first prompt's last token."""
    settings: dict[str, Any] = {"max_model_len": 64, "num_blocks": 200, "block_size": 5, "num_threads": 2}
    config = EngineConfig(model=str(folder), isa=isa, dtype=dtype, **(settings | changes))
    worker = Worker(config)
    try:
        return last_logits(worker, config, prompts)[0].tobytes()
    finally:
        worker.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_chunks_company_and_block_size_do_not_change_a_bit_of_the_logits(
    isa: str, dtype: str, model: TinyModel
) -> None:
    expected = logits(model.folder, model.prompts[:1], isa, dtype)
    assert np.ptp(np.frombuffer(expected, np.float32)) > 1
    for changes in ({"long_prefill_token_threshold": 7}, {"block_size": 64}, {"max_num_batched_tokens": 3}):
        assert logits(model.folder, model.prompts, isa, dtype, **changes) == expected, changes
