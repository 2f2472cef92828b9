"""Mistral: Llama with a sliding window. Ministral: a window in some of the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.models.llama import Llama
from fastpaged.models.llama_config import LlamaConfig, hf_window, hf_windows, llama_from_hf

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys


@dataclass(frozen=True)
class Mistral(Llama):
    """A loaded model."""

    family: ClassVar[str] = "mistral"
    hf_architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM", "MinistralForCausalLM")
    gguf_architectures: ClassVar[tuple[str, ...]] = ()  # llama.cpp's converter says "llama"

    @classmethod
    def config_from_hf(cls, keys: Keys) -> LlamaConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        return llama_from_hf(cls.family, keys, max_positions=131072, windows=hf_windows(keys, 0, hf_window(keys, 4096)))
