"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, gate and up in another, and factors for long positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fastpaged.models.llama import Llama
from fastpaged.models.llama_config import LlamaConfig, hf_window, hf_windows, llama_from_hf

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys


@dataclass(frozen=True)
class Phi3(Llama):
    """A loaded model."""

    family: ClassVar[str] = "phi3"
    hf_architectures: ClassVar[tuple[str, ...]] = ("Phi3ForCausalLM",)
    gguf_architectures: ClassVar[tuple[str, ...]] = ("phi3",)
    qkv_names: ClassVar[tuple[str, ...]] = ("self_attn.qkv_proj",)
    gate_up_names: ClassVar[tuple[str, ...]] = ("mlp.gate_up_proj",)
    is_permuted_in_gguf: ClassVar[bool] = False

    @classmethod
    def config_from_hf(cls, keys: Keys) -> LlamaConfig:
        """From config.json. Raises ModelFormatError naming the key that is wrong or not supported."""
        keys.only("attention_bias", None, False)
        return llama_from_hf(
            cls.family,
            keys,
            max_positions=4096,
            eps=1e-5,
            windows=hf_windows(keys, 0, hf_window(keys, 0)),
            rotated_share=1.0,
            phi_names=True,
        )
