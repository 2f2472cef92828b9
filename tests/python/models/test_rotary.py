"""The rotary table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fastpaged import _core
from fastpaged.config.keys import Keys
from fastpaged.models.registry import config_from_hf
from fastpaged.models.rope import Rope, rope_from_hf
from fastpaged.models.rope_scaling import FactorScaling, LinearScaling, Llama3Scaling, YarnScaling
from fastpaged.models.rotary import rotary_frequencies, rotary_table
from fastpaged.models.sizes import hf_sizes
from fastpaged.models.weight_source import Part
from fastpaged.weights.dummy import DummyCheckpoint
from fastpaged.weights.loader import load_model


def test_a_row_holds_the_cosines_then_the_sines_of_its_position() -> None:
    table = rotary_table(50, Rope(100.0, 8))
    assert table.shape == (50, 8)
    assert table.dtype == np.float32
    for position in (0, 1, 7, 49):
        angles = [position * 100.0 ** (-i / 4) for i in range(4)]
        np.testing.assert_allclose(table[position], [*np.cos(angles), *np.sin(angles)], atol=1e-5)


def test_a_long_table_is_made_in_pieces_without_a_seam() -> None:
    num_positions = (1 << 18) + 3  # one piece and a bit for a head of two
    table = rotary_table(num_positions, Rope(10000.0, 2))
    positions = np.arange(num_positions, dtype=np.float64)
    np.testing.assert_array_equal(table, np.stack([np.cos(positions), np.sin(positions)], 1).astype(np.float32))


@pytest.mark.parametrize(("head_dim", "theta"), [(64, 100000.0), (128, 500000.0), (16, 10000.0)])
def test_angles_are_those_of_transformers_to_the_last_bit_but_one(head_dim: int, theta: float) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, rope_theta=theta, max_position_embeddings=8192
    )
    oracle = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    cos, sin = oracle(torch.zeros(1, dtype=torch.float32), torch.arange(8192)[None])
    expected = torch.cat([cos[0, :, : head_dim // 2], sin[0, :, : head_dim // 2]], dim=1).numpy()
    np.testing.assert_allclose(rotary_table(8192, Rope(theta, head_dim)), expected, rtol=0, atol=2**-23)


SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "llama3", "factor": 3.7, "low_freq_factor": 0.5, "high_freq_factor": 9.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 0.5},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.2},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.7, "beta_fast": 20.0, "beta_slow": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 5.0, "beta_slow": 5.0, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3},
    {"rope_type": "longrope", "short": 1, "long": 5},
    {"rope_type": "longrope", "short": 1, "long": 5, "attention_factor": 1.4},
    {"rope_type": "longrope", "short": 1, "long": 5, "factor": 16.0},
]


@pytest.mark.parametrize("settings", SCALINGS, ids=lambda settings: str(settings["rope_type"]))
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10000.0), (48, 1000000.0), (128, 500000.0)])
def test_scaled_frequencies_are_those_of_transformers(head_dim: int, theta: float, settings: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rng = np.random.default_rng(7)
    rope = {"rope_theta": theta, "original_max_position_embeddings": 4096} | settings
    for name in ("short", "long"):
        if name in rope:
            rope[f"{name}_factor"] = (rope.pop(name) * (1 + rng.random(head_dim // 2))).tolist()
    config = {
        "hidden_size": 2 * head_dim,
        "num_attention_heads": 2,
        "max_position_embeddings": 32768,
        "rope_parameters": rope,
    }
    oracle_of = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[settings["rope_type"]]
    keys = Keys("config.json", {**config, "vocab_size": 1, "num_hidden_layers": 1})
    ours = rope_from_hf(keys, hf_sizes(keys))
    for num_positions in (4096, 4097):
        expected, length = oracle_of(transformers.LlamaConfig(**config), "cpu", seq_len=num_positions)
        got = rotary_frequencies(num_positions, ours)
        np.testing.assert_allclose(got, expected.numpy(), rtol=4e-7)
        table = rotary_table(num_positions, ours)
        np.testing.assert_allclose(table[0], [length] * (head_dim // 2) + [0] * (head_dim // 2), rtol=1e-7)


def test_each_scaling_does_what_it_says() -> None:
    plain = rotary_frequencies(1, Rope(10000.0, 32))
    linear = rotary_frequencies(1, Rope(10000.0, 32, LinearScaling(4.0)))
    np.testing.assert_allclose(linear, plain / 4, rtol=1e-7)
    for scaling in (Llama3Scaling(4.0, 1.0, 4.0, 512), YarnScaling(4.0, 512, 1.0)):
        scaled = rotary_frequencies(1, Rope(10000.0, 32, scaling))
        ratios = plain / scaled
        assert (ratios[0], ratios[-1]) == (1, 4)
        assert (np.diff(ratios) >= -1e-6).all()
        assert ((ratios > 1.01) & (ratios < 3.99)).any()


class Tensors:
    """A weight source that has nothing but these."""

    def __init__(self, **tensors: npt.NDArray[np.float32]) -> None:
        self.tensors = tensors

    def vector(self, *parts: str | Part) -> npt.NDArray[np.float32]:
        return np.concatenate([self.tensors[str(part)] for part in parts])

    table = float_table = linear = gated_linear = vector


def test_factors_may_be_tensors_and_the_longest_context_chooses_between_them() -> None:
    factors = [np.linspace(1, most, 8, dtype=np.float32) for most in (2, 30)]
    numbers, names = (
        Rope(10000.0, 16, FactorScaling(short, long, 100, 1.25))
        for short, long in (tuple(tuple(each.tolist()) for each in factors), ("short", "long"))
    )
    assert numbers.tensors == {}
    assert names.tensors == {"short": (8,), "long": (8,)}
    source = Tensors(short=factors[0], long=factors[1])
    for num_positions, expected in ((100, factors[0]), (101, factors[1])):
        table = rotary_table(num_positions, names, source)
        np.testing.assert_array_equal(table, rotary_table(num_positions, numbers))
        plain = rotary_frequencies(num_positions, Rope(10000.0, 16))
        np.testing.assert_allclose(rotary_frequencies(num_positions, names, source), plain / expected, rtol=1e-6)
    with pytest.raises(ValueError, match="source must hold the tensor 'short', got None"):
        rotary_table(5, names)


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50,
         "max_position_embeddings": 40, "intermediate_size": 96}  # fmt: skip
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 40}


@pytest.mark.parametrize(
    ("architecture", "values", "expected"),
    [
        ("LlamaForCausalLM", SMALL, 64),
        ("GPTNeoXForCausalLM", SMALL | {"rotary_pct": 0.5}, 32),
        ("Gemma3ForCausalLM", SMALL | {"head_dim": 16, "sliding_window": 7}, 128),
        ("FalconForCausalLM", SMALL, 64),
        ("FalconForCausalLM", SMALL | {"alibi": True}, 0),
        ("GPT2LMHeadModel", GPT2, 0),
    ],
)
def test_what_a_config_says_its_tables_take_is_what_they_take(
    architecture: str, values: dict[str, Any], expected: int
) -> None:
    config = config_from_hf(values | {"architectures": [architecture]})
    model: Any = load_model(DummyCheckpoint("dummy", config), _core.CpuDevice("scalar", 1), max_model_len=23)
    tables = [getattr(model.weights, name, None) for name in ("rope", "window_rope")]
    num_bytes = sum(table.nbytes for table in tables if table is not None)
    assert config.table_bytes_per_position == expected
    assert num_bytes == 23 * expected
