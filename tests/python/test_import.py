"""`import fastpaged` is light, and finds everything it promises when asked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import fastpaged
from fastpaged.absent_names import OF_PACKAGE

HEAVY = ("numpy", "tokenizers", "jinja2", "torch", "transformers", "fastpaged._core", "fastpaged.engine.llm_engine")


def modules_after(statement: str) -> set[str]:
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_the_import_brings_in_nothing_heavy() -> None:
    assert not modules_after("import fastpaged").intersection(HEAVY)


def test_the_version_needs_neither_numpy_nor_a_tokenizer() -> None:
    loaded = modules_after("from fastpaged.cli.main import main\nimport fastpaged\nfastpaged.__version__")
    assert not loaded.intersection({"numpy", "tokenizers", "jinja2"})


def test_the_engine_never_needs_torch() -> None:
    loaded = modules_after("from fastpaged import LLM, LLMEngine")
    assert "numpy" in loaded
    assert not loaded.intersection({"torch", "transformers", "safetensors", "gguf"})


@pytest.mark.parametrize("name", fastpaged.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fastpaged, name) is not None
    assert name in dir(fastpaged)


def test_no_reason_is_given_for_what_is_there() -> None:
    assert not set(OF_PACKAGE).intersection(fastpaged.__all__)


@pytest.mark.parametrize("name", ["StructuredOutputsParams", "PoolingParams", "LoRARequest"])
def test_a_name_known_from_elsewhere_says_why_it_is_not_there(name: str) -> None:
    assert not hasattr(fastpaged, name)
    with pytest.raises(fastpaged.UnsupportedFeatureError, match=rf"^fastpaged has no {name}: \w"):
        getattr(fastpaged, name)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Colour'"):
        _ = fastpaged.Colour
