"""Qwen 2 and 2.5: Llama with biases of q, k and v, and a sliding window in the upper layers if it is switched on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.config.keys import INT32_MAX
from fastpaged.models.llama import Llama
from fastpaged.models.llama_config import LlamaConfig, hf_windows, llama_from_hf

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys


@dataclass(frozen=True)
class Qwen2(Llama):
    """A loaded model."""

    family: ClassVar[str] = "qwen2"
    hf_architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("qwen2",)
    is_permuted_in_gguf: ClassVar[bool] = False

    @classmethod
    def config_from_hf(cls, keys: Keys) -> LlamaConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        return llama_from_hf(cls.family, keys, max_positions=32768, windows=qwen_windows(keys), qkv_bias=True)


def qwen_windows(keys: Keys) -> tuple[int, ...]:
    """Only with use_sliding_window: then layers from max_window_layers on have one, or those that layer_types says."""
    window = keys.integer("sliding_window", 4096) if keys.boolean("use_sliding_window", False) else 0
    return hf_windows(keys, keys.integer("max_window_layers", 28, limits=(0, INT32_MAX)), window)
