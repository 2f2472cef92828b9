"""Windows, head norms, biases and scaled positions: the same bits whatever the chunks, the company and the blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced import last_logits
from isas import EVERY_ISA
from tiny_model import from_bfloat16, tiny_config, to_bfloat16, write_json, write_safetensors

from fastpaged.config import EngineConfig
from fastpaged.config.keys import Keys
from fastpaged.models.qwen3 import Qwen3
from fastpaged.worker.worker import Worker

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 45)]
CONFIG: dict[str, object] = tiny_config() | {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 48,
    "attention_bias": True,
    "use_sliding_window": True,
    "sliding_window": 19,
    "max_window_layers": 1,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    random = np.random.default_rng(3)
    weights = {}
    for name, shape in Qwen3.weight_shapes(Qwen3.config_from_hf(Keys("config.json", CONFIG))).items():
        values = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            values = (0 if name.endswith("bias") else 1) + values / np.float32(8)
        elif "embed_tokens" not in name:
            values /= np.float32(np.sqrt(shape[1]))
        weights[name] = from_bfloat16(to_bfloat16(values))
    write_json(folder / "config.json", CONFIG)
    write_safetensors(folder / "model.safetensors", weights)
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", EVERY_ISA)
def test_chunks_company_and_block_size_do_not_change_a_bit_of_the_logits(isa: str, dtype: str, model: Path) -> None:
    prompts = [PROMPT[:n] for n in (45, 1, 17, 32)]

    def logits(prompts: list[list[int]], **changes: int) -> bytes:
        settings: dict[str, Any] = {"max_model_len": 128, "num_blocks": 400, "block_size": 5, "num_threads": 2}
        config = EngineConfig(model=str(model), isa=isa, dtype=dtype, **(settings | changes))
        return last_logits(Worker(config), config, prompts)[0].tobytes()

    expected = logits(prompts[:1])
    assert np.ptp(np.frombuffer(expected, np.float32)) > 1
    for changes in ({"long_prefill_token_threshold": 7}, {"block_size": 64}, {"max_num_batched_tokens": 3}):
        assert logits(prompts, **changes) == expected, changes
