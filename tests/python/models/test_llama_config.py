"""What config.json and GGUF metadata say of a model, and what is refused by its key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tiny_model import tiny_config

from fastpaged.errors import ModelFormatError
from fastpaged.models.llama_config import LlamaConfig
from fastpaged.models.registry import FAMILIES, config_from_gguf, config_from_hf
from fastpaged.models.rope import Rope
from fastpaged.models.rope_scaling import FactorScaling, LinearScaling, Llama3Scaling, YarnScaling
from fastpaged.models.rotary import rotary_table


def rope_of(config: Mapping[str, object]) -> Rope:
    read = config_from_hf(config)
    assert isinstance(read, LlamaConfig)
    return read.rope


def windows_of(config: Mapping[str, object]) -> tuple[int, ...]:
    read = config_from_hf(config)
    assert isinstance(read, LlamaConfig)
    return read.windows


def test_a_hugging_face_config_is_read_with_its_defaults() -> None:
    config = config_from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 100,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
        }
    )
    assert config == LlamaConfig("llama", 100, 64, 3, 4, 4, 16, 2048, False, 96, 1e-6, Rope(10000.0, 16), (0, 0, 0))
    assert config.kv_bytes_per_token("bfloat16") == 2 * 3 * 4 * 16 * 2
    assert config.kv_bytes_per_token("float32") == 2 * 3 * 4 * 16 * 4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 500000}, "rope_theta": 3.0},
        {"rope_theta": 500000.0, "rope_scaling": None},
    ],
)
def test_the_base_of_the_rotation_is_found_in_either_place(rope: dict[str, object]) -> None:
    values = {key: value for key, value in tiny_config().items() if key != "rope_theta"}
    assert rope_of(values | rope) == Rope(500000.0, 16)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"architectures": ["BertModel"]}, ("architectures", "LlamaForCausalLM", "BertModel")),
        ({"architectures": None}, ("architectures", "LlamaForCausalLM", "None")),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("rope_scaling: low_freq_factor", "missing")),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            ("rope_scaling: low_freq_factor", "less than high_freq_factor = 4.0", "4.0"),
        ),
        ({"rope_scaling": {"type": "linear"}}, ("rope_scaling: factor", "a number", "missing")),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("rope_scaling: type", "linear", "yarn", "'dynamic'")),
        ({"rope_parameters": {"rope_type": "ntk"}}, ("rope_parameters: rope_type", "llama3", "'ntk'")),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1}}, ("rope_theta", "greater than 1 with yarn")),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 7, "long_factor": [1.0] * 8}},
            ("rope_scaling: short_factor", "a list of 8 numbers"),
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 7 + [0.0], "long_factor": [1.0] * 8}},
            ("rope_scaling, short_factor: 7", "positive"),
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, ("full_attention", "rotated alike")),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ("partial_rotary_factor", "0.5")),
        ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor", "0.5")),
        ({"attention_bias": 1}, ("attention_bias", "true or false", "1")),
        ({"hidden_act": "gelu"}, ("hidden_act", "silu", "gelu")),
        ({"quantization_config": {"bits": 4}}, ("quantization_config", "None", "bits")),
        ({"vocab_size": None}, ("vocab_size", "an integer")),
        ({"hidden_size": "64"}, ("hidden_size", "an integer", "'64'")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "from 1 to 4096", "0")),
        ({"num_key_value_heads": 3}, ("num_kv_heads = 3", "num_heads", "4")),
        ({"head_dim": 15}, ("head_dim", "even", "15")),
        ({"rms_norm_eps": "small"}, ("rms_norm_eps", "a number", "'small'")),
        ({"rope_theta": -1.0}, ("rope_theta", "positive", "-1.0")),
        ({"tie_word_embeddings": 1}, ("tie_word_embeddings", "true or false", "1")),
    ],
)
def test_a_hugging_face_config_that_cannot_be_run_is_refused_by_its_key(
    change: dict[str, object], parts: tuple[str, ...]
) -> None:
    with pytest.raises(ModelFormatError) as error:
        config_from_hf(tiny_config() | change)
    for part in parts:
        assert part in str(error.value)


GGUF_METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 172,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.tokens": [""] * 300,
}


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_says_the_same_as_the_config_it_was_made_from(tied: bool) -> None:
    names = ["token_embd.weight"] + ([] if tied else ["output.weight"])
    assert config_from_gguf(GGUF_METADATA, names) == config_from_hf(tiny_config(tied=tied))
    assert config_from_gguf(GGUF_METADATA | {"llama.vocab_size": 301}, names).vocab_size == 301


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("general.architecture", "bert", ("llama", "'bert'")),
        ("general.architecture", None, ("llama", "None")),
        ("llama.rope.scaling.type", "ntk", ("none", "yarn", "'ntk'")),
        ("llama.rope.scaling.type", "yarn", ("llama.rope.scaling.factor", "missing")),
        ("llama.expert_count", 8, ("0", "8")),
        ("llama.rope.dimension_count", 32, ("from 2 to 16", "32")),
        ("llama.rope.dimension_count", 7, ("even", "7")),
        ("llama.attention.sliding_window", -1, ("from 0", "-1")),
        ("llama.attention.value_length", 32, ("16", "32")),
        ("llama.attention.head_count_kv", np.array([2, 1]), ("an integer", "array")),
        ("llama.block_count", None, ("an integer",)),
        ("tokenizer.ggml.tokens", None, ("llama.vocab_size", "missing")),
    ],
)
def test_gguf_metadata_that_cannot_be_run_is_refused_by_its_key(
    key: str, value: object, parts: tuple[str, ...]
) -> None:
    with pytest.raises(ModelFormatError) as error:
        config_from_gguf(GGUF_METADATA | {key: value}, ())
    for part in (*parts, "GGUF metadata"):
        assert part in str(error.value)


ODD_VALUES: tuple[object, ...] = (
    None,
    [],
    {},
    [["x"]],
    [{}],
    "x",
    "",
    True,
    -1,
    0,
    2**31,
    10**25,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
)


@pytest.mark.parametrize("key", sorted({*tiny_config(), "rope_theta", "rope_scaling", "rope_parameters", "head_dim"}))
def test_any_value_of_any_key_is_read_or_refused_as_a_bad_model(key: str) -> None:
    for value in ODD_VALUES:
        try:
            config = config_from_hf({**tiny_config(), key: value})
        except ModelFormatError:
            continue
        assert config.num_layers <= 4096
        assert 2 <= config.max_position_embeddings <= 2**24


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", 2**32 - 1, "llama.block_count must be an integer from 1 to 4096, got 4294967295"),
        ("llama.context_length", 2**32 - 1, "llama.context_length must be an integer from 2 to 16777216"),
        ("llama.context_length", 1, "llama.context_length must be an integer from 2 to 16777216"),
        ("llama.vocab_size", 2**40, "llama.vocab_size must be an integer from 1 to 2147483647"),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_anything_is_sized_by_them(
    key: str, value: int, message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        config_from_gguf({**GGUF_METADATA, key: value}, ())


GGUF_KEYS = {
    *GGUF_METADATA,
    "llama.vocab_size",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scale_linear",
    "llama.pooling_type",
    "llama.expert_count",
    "llama.attention.sliding_window",
} | {f"llama.attention.{name}" for name in ("key_length", "value_length")}


@pytest.mark.parametrize("key", sorted(GGUF_KEYS))
def test_any_value_of_any_gguf_key_is_read_or_refused_as_a_bad_model(key: str) -> None:
    for value in (*ODD_VALUES, np.array([1, 2]), np.array([]), np.array([True, False])):
        try:
            config = config_from_gguf({**GGUF_METADATA, key: value}, ())
        except ModelFormatError:
            continue
        assert config.num_layers <= 4096
        assert 2 <= config.max_position_embeddings <= 2**24


ROPE_SETTINGS: dict[str, object] = {
    "rope_theta": 10000.0,
    "rope_type": "default",
    "type": "default",
    "partial_rotary_factor": 1.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "attention_factor": 1.1,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", "longrope"])
@pytest.mark.parametrize("key", sorted(ROPE_SETTINGS))
def test_any_value_within_the_rope_settings_is_read_or_refused_as_a_bad_model(place: str, kind: str, key: str) -> None:
    for value in ODD_VALUES:
        try:
            config = config_from_hf({**tiny_config(), place: {**ROPE_SETTINGS, "rope_type": kind, key: value}})
        except ModelFormatError:
            continue
        assert isinstance(config, LlamaConfig)
        assert np.isfinite(rotary_table(8, config.rope)).all()


@pytest.mark.parametrize("value", [0, 1, 2**24 + 1, 2**31, 10**12, 10**25])
def test_a_context_that_no_model_has_is_refused_by_its_key(value: int) -> None:
    with pytest.raises(
        ModelFormatError, match=f"max_position_embeddings must be an integer from 2 to 16777216, got {value}"
    ):
        config_from_hf({**tiny_config(), "max_position_embeddings": value})


@pytest.mark.parametrize("value", [[["x"]], [{}]])
def test_architectures_that_are_no_names_are_refused_by_their_key(value: object) -> None:
    with pytest.raises(ModelFormatError, match="architectures must be one of LlamaForCausalLM, .*, got"):
        config_from_hf({**tiny_config(), "architectures": value})


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, float("inf"), float("nan"), 0])
@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
def test_a_number_that_float32_cannot_hold_is_refused_by_its_key(key: str, value: float) -> None:
    message = f"{key} must be a positive number that float32 can hold, got"
    with pytest.raises(ModelFormatError, match=message):
        config_from_hf({**tiny_config(), key: value})
    if key == "rope_theta":
        with pytest.raises(ModelFormatError, match=f"rope_parameters: {message}"):
            config_from_hf({**tiny_config(), "rope_parameters": {key: value}})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rope_type": "default", "factor": 4.0}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            Llama3Scaling(8.0, 1.0, 4.0, 512),
        ),
        ({"type": "yarn", "factor": 1.0}, YarnScaling(1.0, 512, 1.0)),
        ({"type": "yarn", "original_max_position_embeddings": 256}, YarnScaling(2.0, 256, 1 + 0.1 * np.log(2.0))),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "attention_factor": 1.5,
                "beta_fast": 16,
                "beta_slow": 2,
                "truncate": False,
            },
            YarnScaling(4.0, 512, 1.5, 16.0, 2.0, False),
        ),
        (
            {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2] * 8, "attention_factor": 1.25},
            FactorScaling((1.0,) * 8, (2.0,) * 8, 512, 1.25),
        ),
    ],
)
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_scaled_positions_are_read_in_either_spelling(
    place: str, settings: dict[str, object], expected: object
) -> None:
    assert rope_of({**tiny_config(), place: settings}) == Rope(10000.0, 16, expected)  # type: ignore[arg-type]


def test_the_original_context_beside_the_rope_settings_comes_before_the_one_within() -> None:
    settings = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = {**tiny_config(), "rope_scaling": settings, "original_max_position_embeddings": 128}
    assert rope_of(config).scaling == YarnScaling(4.0, 128, 1 + 0.1 * np.log(4.0))


def test_yarn_reaches_as_far_as_it_stretches_and_nothing_else_does() -> None:
    settings = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert config_from_hf({**tiny_config(), "rope_scaling": settings}).max_position_embeddings == 2048
    settings = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert config_from_hf({**tiny_config(), "rope_scaling": settings}).max_position_embeddings == 512
    settings = {"type": "linear", "factor": 4.0}
    assert config_from_hf({**tiny_config(), "rope_scaling": settings}).max_position_embeddings == 512


QWEN = {**tiny_config(), "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "sliding_window": 9}
MISTRAL = {**QWEN, "architectures": ["MistralForCausalLM"]}
MIXED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MISTRAL, (9,) * 4),
        (MISTRAL | {"sliding_window": None}, (0,) * 4),
        ({key: value for key, value in MISTRAL.items() if key != "sliding_window"}, (4096,) * 4),
        (MISTRAL | {"layer_types": MIXED}, (9, 0, 0, 9)),
        (QWEN, (0,) * 4),
        (QWEN | {"layer_types": ["full_attention"] * 4}, (0,) * 4),
        (QWEN | {"use_sliding_window": True}, (0,) * 4),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 3}, (0, 0, 0, 9)),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None}, (4096,) * 4),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 3, "layer_types": MIXED}, (9, 0, 0, 9)),
        ({**tiny_config(), "sliding_window": 9}, (0, 0)),
    ],
)
def test_windows_are_where_the_family_has_them(config: dict[str, object], expected: tuple[int, ...]) -> None:
    assert windows_of(config) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": MIXED}, "layer_types must be all 'full_attention' where there is no sliding_window"),
        ({"layer_types": MIXED[:3]}, "layer_types must be a list of 4 strings"),
        ({"layer_types": [*MIXED[:3], "chunked_attention"]}, "layer_types must be of full.*'chunked_attention' among"),
        ({"sliding_window": 0, "use_sliding_window": True}, "sliding_window must be an integer from 1"),
    ],
)
def test_windows_that_cannot_be_had_are_refused_by_their_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        config_from_hf(QWEN | change)


@pytest.mark.parametrize("family", ["Phi3", "Mistral", "Qwen2", "Qwen3"])
@pytest.mark.parametrize(
    "key", ["sliding_window", "layer_types", "use_sliding_window", "max_window_layers", "partial_rotary_factor"]
)
def test_any_value_of_a_familys_own_keys_is_read_or_refused_as_a_bad_model(family: str, key: str) -> None:
    base = {**tiny_config(), "architectures": [f"{family}ForCausalLM"], "use_sliding_window": True, "sliding_window": 9}
    for value in ODD_VALUES:
        try:
            config = config_from_hf({**base, key: value})
        except ModelFormatError:
            continue
        assert isinstance(config, LlamaConfig)
        assert len(config.windows) == 2


def test_phi_calls_longrope_by_older_names_and_turns_a_part_of_each_head() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    for name in ("su", "yarn", "longrope"):
        config = {
            **tiny_config(),
            "architectures": ["Phi3ForCausalLM"],
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 256,
            "rope_scaling": {"type": name, **factors},
        }
        factor = np.sqrt(1 + np.log(2) / np.log(256))
        assert rope_of(config) == Rope(10000.0, 8, FactorScaling((1.0,) * 4, (2.0,) * 4, 256, factor))


def test_phi_was_trained_for_4096_positions_where_its_file_does_not_say() -> None:
    settings = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = {
        **tiny_config(),
        "architectures": ["Phi3ForCausalLM"],
        "max_position_embeddings": 8192,
        "rope_scaling": settings | {"original_max_position_embeddings": 64},
    }
    factor = np.sqrt(1 + np.log(2) / np.log(4096))
    assert rope_of(config).scaling == FactorScaling((1.0,) * 8, (2.0,) * 8, 4096, factor)


def test_every_architecture_belongs_to_one_family() -> None:
    for names in ([f.hf_architectures for f in FAMILIES], [f.gguf_architectures for f in FAMILIES]):
        flat = [name for family in names for name in family]
        assert len(set(flat)) == len(flat)
    assert len({family.family for family in FAMILIES}) == len(FAMILIES)


def test_an_architecture_that_is_not_known_is_named_with_those_that_are() -> None:
    for architectures in (["BertModel"], ["LlamaForCausalLM", "BertModel"], [], None, 7):
        with pytest.raises(ModelFormatError) as error:
            config_from_hf({**tiny_config(), "architectures": architectures})
        for name in ("LlamaForCausalLM", "Phi3ForCausalLM", "Qwen3ForCausalLM", repr(architectures)):
            assert name in str(error.value)
    with pytest.raises(ModelFormatError, match="general.architecture must be one of llama, .*qwen2.*, got 'bert'"):
        config_from_gguf({"general.architecture": "bert"}, ())
