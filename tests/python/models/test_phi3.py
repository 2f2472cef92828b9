"""Phi-3 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from models.oracle import SEEN, TOLERANCE, Case, distance, family_tests, tiny_model, torch_logits

HALF = 12  # frequencies of a head of 48, half of which is rotated


def phi3(**settings: Any) -> transformers.Phi3Config:
    small = {
        "vocab_size": 101,
        "hidden_size": 96,
        "intermediate_size": 97,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    return transformers.Phi3Config(**(small | settings))


def longrope(original_positions: int, **settings: Any) -> dict[str, Any]:
    return {
        "original_max_position_embeddings": original_positions,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0 + 0.05 * i for i in range(HALF)],
            "long_factor": [2.0 + 0.3 * i for i in range(HALF)],
            **settings,
        },
    }


ROTATION = ("no rotation", "a rotation a tenth too slow")
# Prompts are of 6 to 37 tokens: those that need the long factors all do, where transformers choose them by prompt.
CASES = {
    "plain": Case(phi3(), (*ROTATION, "another gate")),
    "windowed": Case(phi3(sliding_window=9, num_key_value_heads=2), ("no window", "a window one key too wide")),
    "short factors": Case(phi3(**longrope(64)), ROTATION),
    "long factors": Case(phi3(**longrope(5)), ROTATION),
    "long factors with a factor of their own": Case(phi3(**longrope(5, attention_factor=1.4)), ROTATION),
}

test_torch_ops_give_the_logits_of_transformers, test_the_worker_gives_them, test_mistakes_are_seen = family_tests(CASES)


@pytest.mark.parametrize(
    ("lengths", "level", "parts"),
    [
        ((37, 21), "WARNING", ("long factors serve all", "max_model_len = 37 is more than 16", "max_model_len=16 or")),
        ((16, 9), "INFO", ("short factors serve all", "max_model_len = 16 is no more than 16", "takes the long")),
    ],
)
def test_the_log_says_which_factors_serve_and_these_are_transformers_own_on_either_side(
    lengths: tuple[int, ...], level: str, parts: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(tmp_path, phi3(**longrope(16)), lengths=lengths)
    with caplog.at_level("INFO", "fastpaged.models"):
        assert distance(torch_logits(model.folder, model.prompts), model.logits) < TOLERANCE
    (record,) = (record for record in caplog.records if record.name.startswith("fastpaged.models"))
    assert record.levelname == level
    for part in parts:
        assert part in record.getMessage()


def test_beside_a_long_text_a_short_one_has_the_long_factors_as_the_warning_says(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, phi3(**longrope(16)), lengths=(37, 9))
    long, short = torch_logits(model.folder, model.prompts)
    assert distance([long], model.logits[:1]) < TOLERANCE
    assert distance([short], model.logits[1:]) > SEEN


def test_factors_that_are_the_same_on_either_side_are_not_spoken_of(tmp_path: Path, caplog: Any) -> None:
    settings = longrope(16)
    settings["rope_parameters"]["long_factor"] = settings["rope_parameters"]["short_factor"]
    model = tiny_model(tmp_path, phi3(**settings))
    with caplog.at_level("INFO", "fastpaged.models"):
        torch_logits(model.folder, model.prompts)
    assert not [record for record in caplog.records if record.name.startswith("fastpaged.models")]
