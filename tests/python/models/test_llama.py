"""The recorded Llama against a plain forward pass, on every op table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from forced import last_logits, prefix_logits
from isas import EVERY_ISA
from models.plain_llama import MISTAKES, Mistake, plain_logits
from tiny_model import tiny_config, tiny_llama_config, tiny_weights, write_json, write_safetensors, write_tiny_llama

from fastpaged.config import EngineConfig
from fastpaged.models.llama import Llama
from fastpaged.worker.worker import Worker

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 45)]
# Activations are rounded to bfloat16 (2^-9) a dozen times on the way; logits of the tiny model have a deviation of 2.
TOLERANCE = 0.015  # root mean square of the difference, relative to that of the logits


def distance(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)) / np.sqrt(np.mean(b**2)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"), seed=3, tokenizer=False)


def engine_config(model: Path, isa: str, **changes: int) -> EngineConfig:
    settings: dict[str, Any] = {"max_model_len": 128, "num_blocks": 400, "block_size": 5, "num_threads": 2} | changes
    return EngineConfig(model=str(model), isa=isa, **settings)


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_every_position_has_the_logits_of_a_plain_float32_forward(isa: str, model: Path) -> None:
    config = engine_config(model, isa)
    got = prefix_logits(Worker(config), config, PROMPT)
    assert distance(got, plain_logits(tiny_llama_config(), tiny_weights(seed=3), PROMPT)) < TOLERANCE


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_tolerance_sees_every_mistake(mistake: Mistake) -> None:
    config, weights = tiny_llama_config(), tiny_weights(seed=3)
    wrong = plain_logits(config, weights, PROMPT, mistake)
    assert distance(wrong, plain_logits(config, weights, PROMPT)) > 10 * TOLERANCE


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_every_position_has_the_logits_of_transformers_in_float32(isa: str, model: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        expected = oracle(torch.tensor([PROMPT])).logits[0].numpy()
    config = engine_config(model, isa)
    assert distance(prefix_logits(Worker(config), config, PROMPT), expected) < TOLERANCE


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_chunks_company_and_block_size_do_not_change_a_bit_of_the_logits(isa: str, model: Path) -> None:
    prompts = [PROMPT[:n] for n in (45, 1, 17, 32)]
    config = engine_config(model, isa)
    expected = last_logits(Worker(config), config, prompts[:1])[0]
    for changes in ({"long_prefill_token_threshold": 7}, {"block_size": 64}, {"max_num_batched_tokens": 3}):
        config = engine_config(model, isa, **changes)
        got = last_logits(Worker(config), config, prompts)[0]
        assert got.tobytes() == expected.tobytes(), changes


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_a_tied_head_is_the_embedding(isa: str, tmp_path: Path) -> None:
    tied = write_tiny_llama(tmp_path / "tied", tied=True, tokenizer=False)
    weights = tiny_weights(tied=True)
    untied = write_tiny_llama(tmp_path / "untied", tokenizer=False)
    write_json(untied / "config.json", tiny_config())
    write_safetensors(untied / "model.safetensors", weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    tied_config, untied_config = engine_config(tied, isa), engine_config(untied, isa)
    got = last_logits(Worker(tied_config), tied_config, [PROMPT])
    assert got.tobytes() == last_logits(Worker(untied_config), untied_config, [PROMPT]).tobytes()


def test_weights_are_named_and_shaped_as_transformers_has_them() -> None:
    transformers = pytest.importorskip("transformers")
    for tied in (False, True):
        oracle = transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny_config(tied=tied)))
        expected = {name: tuple(parameter.shape) for name, parameter in oracle.named_parameters()}
        assert Llama.weight_shapes(tiny_llama_config(tied=tied)) == expected
