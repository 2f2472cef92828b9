"""Random weights in place of files, and which files a load_format lets in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import from_bfloat16, tiny_config, tiny_weights, write_json, write_tiny_llama
from weights.tiny_gguf import write_tiny_gguf

from fastpaged import LLM, InvalidRequestError, ModelFormatError, ModelNotFoundError, SamplingParams
from fastpaged.weights.checkpoint import open_checkpoint, read_config
from fastpaged.weights.dummy import DummyCheckpoint

SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 16, "max_num_batched_tokens": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def config_only(tmp_path: Path, tiny_llama: Path) -> Path:
    """A folder with config.json and a tokenizer, and no weights."""
    folder = tmp_path / "config_only"
    shutil.copytree(tiny_llama, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def dummy(folder: Path) -> DummyCheckpoint:
    return DummyCheckpoint(str(folder), read_config(folder))


def test_a_dummy_has_the_tensors_of_the_real_model_and_is_the_same_every_time(
    config_only: Path, tiny_llama: Path
) -> None:
    real = open_checkpoint(tiny_llama)
    names = sorted(real.tensor_names)
    first, second = dummy(config_only), dummy(config_only)
    assert sorted(first.tensor_names) == names
    for name in names:
        stored = first.tensor(name)
        assert (stored.kind, stored.shape) == (first.kind(name), first.shape(name)) == ("BF16", real.shape(name))
        assert stored.data.nbytes == 2 * np.prod(stored.shape)
        assert np.array_equal(stored.data, second.tensor(name).data)
    assert first.shape("nothing") is None
    assert first.kind("nothing") is None
    with pytest.raises(ModelFormatError, match="a llama model has no tensor 'nothing'"):
        first.tensor("nothing")


def test_dummy_matrices_are_about_normal_and_norms_scale_by_one(config_only: Path) -> None:
    checkpoint = dummy(config_only)
    matrix = from_bfloat16(checkpoint.tensor("lm_head.weight").data.view(np.uint16)) * 8  # 64 columns
    assert abs(matrix.mean()) < 0.05 and 0.9 < matrix.std() < 1.1
    other = checkpoint.tensor("model.embed_tokens.weight").data
    assert not np.array_equal(other, checkpoint.tensor("lm_head.weight").data)
    assert set(from_bfloat16(checkpoint.tensor("model.norm.weight").data.view(np.uint16))) == {1.0}


def test_an_llm_of_dummy_weights_answers(config_only: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        LLM(str(config_only), **SMALL)
    answers = []
    for _ in range(2):
        with LLM(str(config_only), load_format="dummy", **SMALL) as llm:
            answers.append(llm.generate("the cat", GREEDY)[0].outputs)
    assert answers[0] == answers[1]


def test_a_load_format_lets_in_no_other(tiny_llama: Path, tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights())
    open_checkpoint(tiny_llama, load_format="safetensors").close()
    open_checkpoint(gguf, load_format="gguf").close()
    with pytest.raises(ModelNotFoundError, match="nothing in gguf format at .*, as load_format asks"):
        open_checkpoint(tiny_llama, load_format="gguf")
    with pytest.raises(ModelNotFoundError, match="nothing in safetensors format at .*, as load_format asks"):
        open_checkpoint(gguf, load_format="safetensors")
    both = write_tiny_llama(tmp_path / "both")
    shutil.copy(gguf, both)
    assert open_checkpoint(both).path.endswith("model.safetensors")
    assert open_checkpoint(both, load_format="gguf").path.endswith("tiny.gguf")


def test_overrides_are_laid_over_config_json(tiny_llama: Path, tmp_path: Path) -> None:
    plain = write_tiny_llama(tmp_path / "plain")
    config = tiny_config()
    del config["max_position_embeddings"]
    write_json(plain / "config.json", config | {"rope_theta": 5e5, "architectures": ["Unknown"]})
    overrides = {key: json.loads((tiny_llama / "config.json").read_text())[key] for key in tiny_config()}
    checkpoint = open_checkpoint(plain, overrides=overrides)
    assert checkpoint.config == open_checkpoint(tiny_llama).config
    with LLM(str(plain), hf_overrides=overrides, **SMALL) as llm, LLM(str(tiny_llama), **SMALL) as expected:
        assert llm.generate("the cat", GREEDY)[0].outputs == expected.generate("the cat", GREEDY)[0].outputs
    with pytest.raises(ModelFormatError, match="vocab_size must be"):
        open_checkpoint(tiny_llama, overrides={"vocab_size": "many"})


def test_a_gguf_file_has_no_config_to_lay_something_over(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_weights())
    with pytest.raises(
        InvalidRequestError, match="hf_overrides must be empty for .*tiny.gguf, which has no config.json"
    ):
        open_checkpoint(gguf, overrides={"rope_theta": 1e6})
    open_checkpoint(gguf, overrides={}).close()
