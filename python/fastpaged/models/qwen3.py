"""Qwen 3: Llama with a norm of each head of q and k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.models.llama import Llama
from fastpaged.models.llama_config import LlamaConfig, llama_from_hf
from fastpaged.models.qwen2 import qwen_windows

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys


@dataclass(frozen=True)
class Qwen3(Llama):
    """A loaded model."""

    family: ClassVar[str] = "qwen3"
    hf_architectures: ClassVar[tuple[str, ...]] = ("Qwen3ForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("qwen3",)
    is_permuted_in_gguf: ClassVar[bool] = False

    @classmethod
    def config_from_hf(cls, keys: Keys) -> LlamaConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        bias = keys.boolean("attention_bias", False)
        return llama_from_hf(
            cls.family,
            keys,
            max_positions=32768,
            head_dim=128,
            windows=qwen_windows(keys),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=True,
        )
