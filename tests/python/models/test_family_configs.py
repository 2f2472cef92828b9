"""config.json of Gemma 3, OPT, GPT-2, Falcon and GPT-NeoX: both spellings, defaults, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from fastpaged.errors import ModelFormatError
from fastpaged.models.falcon import FalconConfig
from fastpaged.models.gemma3 import Gemma3Config
from fastpaged.models.gpt2 import Gpt2Config
from fastpaged.models.gpt_neox import GptNeoxConfig
from fastpaged.models.opt import OptConfig
from fastpaged.models.registry import config_from_hf

SIZES: dict[str, Any] = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4}
GEMMA: dict[str, Any] = SIZES | {
    "architectures": ["Gemma3ForCausalLM"],
    "intermediate_size": 96,
    "num_key_value_heads": 1,
}
OPT: dict[str, Any] = SIZES | {"architectures": ["OPTForCausalLM"], "ffn_dim": 96}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
}
FALCON: dict[str, Any] = SIZES | {"architectures": ["FalconForCausalLM"]}
NEOX: dict[str, Any] = SIZES | {"architectures": ["GPTNeoXForCausalLM"], "intermediate_size": 96}


def test_gemma_3_has_windows_and_rotations_by_kind_of_layer_in_both_spellings() -> None:
    old = config_from_hf(
        GEMMA
        | {"rope_theta": 5000.0, "rope_local_base_freq": 70.0, "sliding_window": 9, "sliding_window_pattern": 3}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    )
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    new = config_from_hf(
        GEMMA
        | {"sliding_window": 9, "layer_types": [*kinds, *kinds, "sliding_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
            }
        }
    )
    assert old == new
    assert isinstance(old, Gemma3Config)
    assert old.windows == (9, 9, 0, 9, 9, 0, 9)
    assert (old.rope.theta, old.window_rope.theta) == (5000.0, 70.0)
    assert old.rope.scaling is not None and old.window_rope.scaling is None


def test_gemma_3_as_it_is_where_its_file_says_nothing() -> None:
    config = config_from_hf(GEMMA)
    assert isinstance(config, Gemma3Config)
    assert config.windows == (4096, 4096, 4096, 4096, 4096, 0, 4096)
    assert (config.head_dim, config.scale, config.logit_cap) == (256, 1 / 16, 0.0)
    assert (config.rope.theta, config.window_rope.theta) == (1e6, 1e4)
    assert config.activation == "gelu_tanh" and config.tie_word_embeddings


def test_gpt_neox_rotates_a_share_of_each_head_in_both_spellings() -> None:
    old = config_from_hf(NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 500})
    parameters = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert old == config_from_hf(NEOX | {"rope_parameters": parameters})
    assert isinstance(old, GptNeoxConfig)
    assert (old.rope.theta, old.rope.rotary_dim) == (500.0, 8)
    default = config_from_hf(NEOX)
    assert isinstance(default, GptNeoxConfig)
    assert default.rope.rotary_dim == 4 and default.parallel_residual and not default.tie_word_embeddings


def test_falcon_says_its_heads_and_norms_by_its_architecture() -> None:
    def read(**changes: Any) -> FalconConfig:
        config = config_from_hf(FALCON | changes)
        assert isinstance(config, FalconConfig)
        return config

    assert read(num_kv_heads=4).num_kv_heads == 1  # of no account where one serves all
    assert read(multi_query=False).num_kv_heads == 4
    new = read(new_decoder_architecture=True, num_kv_heads=2, multi_query=True)
    assert (new.num_kv_heads, new.attention_norm, new.mlp_norm) == (2, "ln_attn", "ln_mlp")
    sequential = read(parallel_attn=False, alibi=True)
    assert (sequential.attention_norm, sequential.mlp_norm) == ("input_layernorm", "post_attention_layernorm")
    assert sequential.rope is None
    assert read(rope_theta=77.0) == read(rope_parameters={"rope_type": "default", "rope_theta": 77.0})


def test_gpt2_scales_scores_as_its_config_says() -> None:
    config = config_from_hf(GPT2 | {"scale_attn_by_inverse_layer_idx": True, "n_inner": None})
    assert isinstance(config, Gpt2Config)
    assert config.scales == (0.25, 0.125, 0.25 / 3) and config.intermediate_size == 256


def test_opt_is_tied_and_relu_where_its_file_says_nothing() -> None:
    config = config_from_hf(OPT | {"word_embed_proj_dim": 64})
    assert isinstance(config, OptConfig)
    assert config.tie_word_embeddings and config.has_bias and config.activation == "relu"


REFUSED: list[tuple[dict[str, Any], str, Any]] = [
    (GEMMA, "attention_bias", True),
    (GEMMA, "attn_logit_softcapping", 50.0),
    (GEMMA, "use_bidirectional_attention", True),
    (GEMMA, "hidden_activation", "mish"),
    (GEMMA, "layer_types", ["sliding_attention"] * 6),
    (GEMMA, "layer_types", ["chunked_attention"] * 7),
    (GEMMA, "sliding_window", 0),
    (GEMMA, "sliding_window", None),
    (GEMMA, "query_pre_attn_scalar", -1),
    (OPT, "do_layer_norm_before", False),
    (OPT, "word_embed_proj_dim", 32),
    (OPT, "layer_norm_elementwise_affine", False),
    (OPT, "_remove_final_layer_norm", True),
    (OPT, "activation_function", "tanh"),
    (OPT, "num_attention_heads", 5),
    (GPT2, "add_cross_attention", True),
    (GPT2, "activation_function", "swiglu"),
    (GPT2, "n_head", 5),
    (GPT2, "n_layer", 0),
    (FALCON, "num_ln_in_parallel_attn", 2),
    (FALCON | {"new_decoder_architecture": True}, "num_ln_in_parallel_attn", 3),
    (FALCON | {"new_decoder_architecture": True}, "parallel_attn", False),
    (FALCON, "alibi", "yes"),
    (FALCON, "activation", "mish"),
    (NEOX, "hidden_act", "mish"),
    (NEOX, "use_parallel_residual", 1),
    (NEOX, "num_attention_heads", 5),
    (NEOX, "head_dim", 128),
]


@pytest.mark.parametrize(("base", "key", "value"), REFUSED, ids=lambda item: item if isinstance(item, str) else None)
def test_what_is_not_supported_is_refused_by_the_key_that_asks_for_it(
    base: dict[str, Any], key: str, value: Any
) -> None:
    config_from_hf(base)
    with pytest.raises(ModelFormatError, match=f"config.json: {key} must be "):
        config_from_hf(base | {key: value})


@pytest.mark.parametrize("share", [0.01, 1.5])
def test_gpt_neox_cannot_rotate_less_than_a_pair_or_more_than_a_head(share: float) -> None:
    with pytest.raises(ModelFormatError, match="even part of it is rotated"):
        config_from_hf(NEOX | {"rotary_pct": share})


def test_gemma_3_without_a_window_is_one_whose_layers_are_all_full() -> None:
    config = config_from_hf(GEMMA | {"sliding_window": None, "layer_types": ["full_attention"] * 7})
    assert isinstance(config, Gemma3Config)
    assert config.windows == (0,) * 7


@pytest.mark.parametrize("base", [NEOX, OPT, FALCON], ids=lambda base: str(base["architectures"][0]))
def test_key_heads_that_the_family_has_no_key_for_are_passed_over(base: dict[str, Any]) -> None:
    for value in (2, 3, None):
        assert config_from_hf(base | {"num_key_value_heads": value}) == config_from_hf(base)


def test_the_head_size_of_gpt_neox_changes_what_is_rotated_and_nothing_else() -> None:
    config = config_from_hf(NEOX | {"head_dim": 32})
    assert isinstance(config, GptNeoxConfig)
    assert (config.head_dim, config.rope.rotary_dim) == (16, 8)


def test_gemma_3_with_pictures_is_an_unknown_architecture() -> None:
    with pytest.raises(
        ModelFormatError, match="architectures must be one of .*Gemma3ForCausalLM.* \\(a multimodal model"
    ):
        config_from_hf({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": GEMMA})
