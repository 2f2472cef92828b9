"""GGUF metadata that changes the arithmetic: served, or refused by its key, and never passed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastpaged.errors import ModelFormatError
from fastpaged.models.gemma3 import Gemma3Config
from fastpaged.models.llama_config import LlamaConfig
from fastpaged.models.registry import config_from_gguf, config_from_hf
from fastpaged.models.rope_scaling import LinearScaling, YarnScaling

NAMES = ("token_embd.weight", "output.weight")
FAMILIES = ("llama", "qwen2", "qwen3", "phi3", "gemma3", "gpt2", "gptneox", "falcon")


def metadata(name: str, **changes: Any) -> dict[str, object]:
    """changes: key without the architecture, "__" for a dot."""
    keys: dict[str, object] = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "vocab_size": 199,
    }
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    own = {f"{name}.{key}": value for key, value in keys.items()}
    return own | {"general.architecture": name, "falcon.tensor_data_layout": "jploski"}


def scaling(**changes: Any) -> object:
    config = config_from_gguf(metadata("llama", **changes), NAMES)
    assert isinstance(config, LlamaConfig)
    return config.rope.scaling


def test_a_factor_without_a_type_is_linear_under_either_key() -> None:
    assert scaling(rope__scaling__factor=4.0) == LinearScaling(4.0)
    assert scaling(rope__scale_linear=4.0) == LinearScaling(4.0)
    assert scaling(rope__scaling__type="linear", rope__scale_linear=2.0) == LinearScaling(2.0)
    assert scaling(rope__scaling__factor=4.0, rope__scale_linear=2.0) == LinearScaling(4.0)
    yarn = scaling(rope__scaling__type="yarn", rope__scale_linear=2.0)
    assert isinstance(yarn, YarnScaling) and yarn.factor == 2.0


def test_a_factor_of_zero_or_of_no_type_scales_nothing() -> None:
    assert scaling(rope__scaling__factor=0.0) is None
    assert scaling(rope__scale_linear=0.0) is None
    assert scaling(rope__scaling__type="none", rope__scaling__factor=4.0) is None


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_type_without_a_factor_is_refused(kind: str) -> None:
    with pytest.raises(
        ModelFormatError, match=r"llama\.rope\.scaling\.factor must be a positive number, but it is miss"
    ):
        scaling(rope__scaling__type=kind)


def test_a_factor_beside_a_tensor_of_factors_is_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"scaling\.type must be 'none' beside a tensor of factors"):
        config_from_gguf(metadata("llama", rope__scaling__factor=4.0), (*NAMES, "rope_freqs.weight"))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("yarn", "yarn_ext_factor", 0.0),
        ("linear", "yarn_ext_factor", 1.0),
        ("linear", "attn_factor", 1.5),
        ("none", "attn_factor", 1.5),
    ],
)
def test_settings_of_a_scaling_that_are_not_supported_are_refused(kind: str, key: str, value: float) -> None:
    settings: dict[str, Any] = {"rope__scaling__type": kind, "rope__scaling__factor": 4.0}
    scaling(**settings)
    with pytest.raises(ModelFormatError, match=rf"llama\.rope\.scaling\.{key} must be .*, got {value}"):
        scaling(**settings, **{f"rope__scaling__{key}": value})


ASKING: dict[str, object] = {
    "attention.causal": False,
    "pooling_type": 3,
    "attention.scale": 0.5,
    "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0,
    "attention.sliding_window_pattern": 2,
    "attention.temperature_length": 8,
    "attention.temperature_scale": 0.1,
    "attn_logit_softcapping": 30.0,
    "final_logit_softcapping": 3.0,
    "logit_scale": 0.1,
    "residual_scale": 0.2,
    "embedding_scale": 12.0,
}
SERVED = {"gemma3": ("attention.sliding_window_pattern", "final_logit_softcapping")}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", ASKING)
def test_arithmetic_of_other_architectures_is_refused_by_its_key(family: str, key: str) -> None:
    changed = metadata(family) | {f"{family}.{key}": ASKING[key]}
    if key in SERVED.get(family, ()):
        config_from_gguf(changed, NAMES)
        return
    with pytest.raises(ModelFormatError, match=f"GGUF metadata: {family}.{key} must be None"):
        config_from_gguf(changed, NAMES)


def test_an_array_of_which_layers_have_windows_is_refused() -> None:
    key = "llama.attention.sliding_window_pattern"
    with pytest.raises(ModelFormatError, match=f"{key} must be None"):
        config_from_gguf(metadata("llama") | {key: np.array([True, False])}, NAMES)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_that_ask_for_nothing_are_passed_over(family: str) -> None:
    nothing: dict[str, Any] = {
        "attention__causal": True,
        "pooling_type": 0,
        "attention__scale": 0.0,
        "attention__clamp_kqv": 0.0,
        "logit_scale": 1.0,
        "residual_scale": 1.0,
        "embedding_scale": 0.0,
    }
    assert config_from_gguf(metadata(family, **nothing), NAMES) == config_from_gguf(metadata(family), NAMES)


def test_what_gemma_3_serves_it_reads() -> None:
    changes: dict[str, Any] = {"attention__sliding_window": 8, "attention__sliding_window_pattern": 2}
    config = config_from_gguf(metadata("gemma3", final_logit_softcapping=3.0, **changes), NAMES)
    assert isinstance(config, Gemma3Config)
    assert (config.windows, config.logit_cap) == ((8, 0), 3.0)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"], "intermediate_size": 96},
        {"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4},
        {"architectures": ["OPTForCausalLM"], "ffn_dim": 96},
    ],
    ids=lambda config: str(config["architectures"][0]),
)
def test_a_config_that_lets_tokens_see_later_ones_is_refused(config: dict[str, object]) -> None:
    sizes = {"vocab_size": 199, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert config_from_hf({**sizes, **config, "is_causal": True}) == config_from_hf({**sizes, **config})
    with pytest.raises(ModelFormatError, match=r"config\.json: is_causal must be None or True .*, got False"):
        config_from_hf({**sizes, **config, "is_causal": False})
