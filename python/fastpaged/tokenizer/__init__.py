"""Text to token ids and back, and chat templates; from tokenizer.json or from a GGUF file's metadata."""

from __future__ import annotations

from fastpaged.tokenizer.load import load_tokenizer
from fastpaged.tokenizer.text_stream import TextStream
from fastpaged.tokenizer.tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer", "load_tokenizer"]
