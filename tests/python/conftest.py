"""Fixtures every Python test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_model import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random 2-layer Llama and its tokenizer. Nobody writes to it."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))


def pytest_configure() -> None:
    """No test fills the cache of whoever runs it: those of packed weights name a folder of their own."""
    os.environ["FASTPAGED_CACHE"] = ""
