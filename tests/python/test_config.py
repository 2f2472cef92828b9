"""The door: every bad setting is refused by name, with the value given and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import tiny_config

from fastpaged.config import EngineConfig, ModelConfig
from fastpaged.errors import InvalidRequestError, ModelFormatError


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("dtype", "float16", "files in it are read as bfloat16 or float32"),
        ("dtype", "half", "files in it are read as bfloat16 or float32"),
        ("dtype", "fp32", "'auto', 'bfloat16' or 'float32'"),
        ("dtype", None, "'auto', 'bfloat16' or 'float32'"),
        ("kv_cache_dtype", "fp8", "no KV cache of 8 or fewer bits yet"),
        ("kv_cache_dtype", "float32", "'auto' or the same as dtype = 'auto'"),
        ("kv_cache_dtype", 8, "'auto', 'bfloat16' or 'float32'"),
        ("max_model_len", 1, "None, -1 or an integer from 2"),
        ("max_model_len", -2, "None, -1 or an integer from 2"),
        ("max_model_len", -1.0, "None, -1 or an integer from 2"),
        ("max_model_len", 2**31, "None, -1 or an integer from 2"),
        ("block_size", 0, "from 1 to 256"),
        ("block_size", 257, "from 1 to 256"),
        ("block_size", None, "from 1 to 256"),
        ("num_blocks", 0, "None or an integer from 1"),
        ("kv_cache_memory_bytes", -1, "None or an integer from 1"),
        ("max_num_seqs", 0, "from 1"),
        ("max_num_batched_tokens", 0, "from 1"),
        ("max_num_batched_tokens", 2**31 - 1, "to 1048576"),
        ("max_num_batched_tokens", 1.5, "an integer"),
        ("max_num_batched_tokens", True, "an integer"),
        ("long_prefill_token_threshold", -1, "from 0"),
        ("seed", -1, "from 0"),
        ("seed", 2**64, "from 0"),
        ("max_logprobs", -2, "from -1"),
        ("num_threads", 0, "from 1 to 1024"),
        ("num_threads", "2", "from 1 to 1024"),
        ("swap_space", -1, "None or a number of GiB from 0 to 8589934591"),
        ("swap_space", -1e-9, "from 0"),
        ("swap_space", float("nan"), "from 0"),
        ("swap_space", float("inf"), "to 8589934591"),
        ("swap_space", 2**33, "to 8589934591"),
        ("swap_space", "4", "a number"),
        ("swap_space", True, "a number"),
        ("preemption_mode", "by_branches", "None or 'recompute' or 'swap'"),
        ("preemption_mode", "", "None or 'recompute' or 'swap'"),
        ("preemption_mode", 0, "None or 'recompute' or 'swap'"),
        ("preemption_mode", [], "None or 'recompute' or 'swap'"),
        ("isa", 3, "name of an op table"),
        ("model", "", "path"),
        ("model", None, "path"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value_and_what_is_allowed(
    name: str, value: object, allowed: str
) -> None:
    settings: dict[str, Any] = {"model": "m"} | {name: value}
    with pytest.raises(InvalidRequestError) as error:
        EngineConfig(**settings)
    assert str(error.value).startswith(name)
    assert repr(value) in str(error.value)
    assert allowed in str(error.value)


def test_the_pool_is_sized_one_way_only() -> None:
    with pytest.raises(InvalidRequestError, match=r"num_blocks and kv_cache_memory_bytes.* 8 and 1024"):
        EngineConfig(model="m", num_blocks=8, kv_cache_memory_bytes=1024)


def test_limits_themselves_are_allowed() -> None:
    EngineConfig(model="m", block_size=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=2, max_logprobs=-1)
    EngineConfig(model="m", block_size=256, num_threads=1024, seed=2**64 - 1, num_blocks=1)
    for swap_space in (None, 0, 0.0, 1e-9, 4, 2**33 - 1):
        assert EngineConfig(model="m", swap_space=swap_space).swap_space == swap_space
    for mode in (None, "recompute", "swap"):
        assert EngineConfig(model="m", preemption_mode=mode).preemption_mode == mode


def test_the_dtype_is_one_of_two_or_left_to_the_engine() -> None:
    assert [EngineConfig(model="m", dtype=dtype).dtype for dtype in ("auto", "bfloat16", "float32", "float")] == [
        "auto", "bfloat16", "float32", "float32",
    ]  # fmt: skip
    assert EngineConfig(model="m", dtype="float32", kv_cache_dtype="float").kv_cache_dtype == "float32"
    assert EngineConfig(model="m", dtype="bfloat16", kv_cache_dtype="auto").kv_cache_dtype == "auto"


def test_a_dtype_of_torch_is_as_good_as_its_name() -> None:
    torch = pytest.importorskip("torch")
    assert EngineConfig(model="m", dtype=torch.bfloat16).dtype == "bfloat16"
    with pytest.raises(InvalidRequestError, match=r"dtype must be .* got torch.float64"):
        EngineConfig(model="m", dtype=torch.float64)


def test_the_context_may_be_what_fits() -> None:
    assert EngineConfig(model="m", max_model_len=-1).max_model_len == -1


def test_numbers_too_long_to_print_are_refused_all_the_same() -> None:
    with pytest.raises(InvalidRequestError, match="swap_space must be None or a number of GiB"):
        EngineConfig(model="m", swap_space=10**400)


def test_a_path_object_is_as_good_as_its_string() -> None:
    assert EngineConfig(model=Path("some") / "model") == EngineConfig(model="some/model")  # type: ignore[arg-type]


def test_a_hugging_face_config_is_read_with_its_defaults() -> None:
    config = ModelConfig.from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 100,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
        }
    )
    assert config == ModelConfig("llama", 100, 64, 96, 3, 4, 4, 16, 1e-6, 10000.0, 2048, False)
    assert config.kv_bytes_per_token == 2 * 3 * 4 * 16 * 2


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
    assert ModelConfig.from_hf(values | rope).rope_theta == 500000.0


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ("architectures", "LlamaForCausalLM", "GPT2LMHeadModel")),
        ({"architectures": None}, ("architectures", "LlamaForCausalLM", "None")),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("rope_scaling", "llama3")),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ("rope_scaling", "linear")),
        ({"rope_parameters": {"rope_type": "yarn"}}, ("rope_parameters", "yarn")),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ("partial_rotary_factor", "0.5")),
        ({"attention_bias": True}, ("attention_bias", "False", "True")),
        ({"mlp_bias": True}, ("mlp_bias", "False", "True")),
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
        ModelConfig.from_hf(tiny_config() | change)
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
    assert ModelConfig.from_gguf(GGUF_METADATA, names) == ModelConfig.from_hf(tiny_config(tied=tied))
    assert ModelConfig.from_gguf(GGUF_METADATA | {"llama.vocab_size": 301}, names).vocab_size == 301


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("general.architecture", "bert", ("llama", "'bert'")),
        ("general.architecture", None, ("llama", "None")),
        ("llama.rope.scaling.type", "yarn", ("none", "'yarn'")),
        ("llama.expert_count", 8, ("0", "8")),
        ("llama.attention.key_length", 32, ("llama.rope.dimension_count", "32", "16")),
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
        ModelConfig.from_gguf(GGUF_METADATA | {key: value}, ())
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
            config = ModelConfig.from_hf({**tiny_config(), key: value})
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
        ModelConfig.from_gguf({**GGUF_METADATA, key: value}, ())


GGUF_KEYS = {*GGUF_METADATA, "llama.vocab_size", "llama.rope.scaling.type", "llama.expert_count"} | {
    f"llama.attention.{name}" for name in ("key_length", "value_length")
}


@pytest.mark.parametrize("key", sorted(GGUF_KEYS))
def test_any_value_of_any_gguf_key_is_read_or_refused_as_a_bad_model(key: str) -> None:
    for value in (*ODD_VALUES, np.array([1, 2]), np.array([]), np.array([True, False])):
        try:
            config = ModelConfig.from_gguf({**GGUF_METADATA, key: value}, ())
        except ModelFormatError:
            continue
        assert config.num_layers <= 4096
        assert 2 <= config.max_position_embeddings <= 2**24


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_theta", "rope_type", "type", "partial_rotary_factor"])
def test_any_value_within_the_rope_settings_is_read_or_refused_as_a_bad_model(place: str, key: str) -> None:
    for value in ODD_VALUES:
        try:
            config = ModelConfig.from_hf({**tiny_config(), place: {key: value}})
        except ModelFormatError:
            continue
        assert 0 < config.rope_theta < float("inf")


@pytest.mark.parametrize("value", [0, 1, 2**24 + 1, 2**31, 10**12, 10**25])
def test_a_context_that_no_model_has_is_refused_by_its_key(value: int) -> None:
    with pytest.raises(
        ModelFormatError, match=f"max_position_embeddings must be an integer from 2 to 16777216, got {value}"
    ):
        ModelConfig.from_hf({**tiny_config(), "max_position_embeddings": value})


@pytest.mark.parametrize("value", [[["x"]], [{}]])
def test_architectures_that_are_no_names_are_refused_by_their_key(value: object) -> None:
    with pytest.raises(ModelFormatError, match="architectures must be one of LlamaForCausalLM, got"):
        ModelConfig.from_hf({**tiny_config(), "architectures": value})


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, float("inf"), float("nan"), 0])
@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
def test_a_number_that_float32_cannot_hold_is_refused_by_its_key(key: str, value: float) -> None:
    message = f"{key} must be a positive number that float32 can hold, got"
    with pytest.raises(ModelFormatError, match=message):
        ModelConfig.from_hf({**tiny_config(), key: value})
    if key == "rope_theta":
        with pytest.raises(ModelFormatError, match=f"rope_parameters: {message}"):
            ModelConfig.from_hf({**tiny_config(), "rope_parameters": {key: value}})
