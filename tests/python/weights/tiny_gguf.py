"""The tiny model as llama.cpp's converter would write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tiny_model import tiny_config, to_bfloat16

from fastpaged.config import ModelConfig
from fastpaged.models.llama import Llama

Array = npt.NDArray[np.float32]
KINDS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def permuted(weight: Array, num_heads: int) -> Array:
    """The converter's reordering of q and k: row i of a head's first half beside row i of its second."""
    heads: Array = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2), np.float32).reshape(weight.shape)


def encoded(weight: Array, kind: str) -> npt.NDArray[np.uint8]:
    """[rows, bytes per row]"""
    if kind == "BF16":
        return to_bfloat16(weight).view(np.uint8)
    data = gguf.quants.quantize(weight, KINDS[kind])
    return np.ascontiguousarray(data).view(np.uint8)


def write_tiny_gguf(path: Path, weights: Mapping[str, Array], kind: str = "BF16", *, tied: bool = False) -> Path:
    """Matrices in `kind`, except where a row is no whole number of blocks; norms in float32."""
    config = ModelConfig.from_hf(tiny_config(tied=tied))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    names = Llama.gguf_names(config)
    for name, weight in weights.items():
        if "q_proj" in name:
            weight = permuted(weight, config.num_heads)
        if "k_proj" in name:
            weight = permuted(weight, config.num_kv_heads)
        stored = "F32" if weight.ndim == 1 else ("BF16" if weight.shape[1] % 32 else kind)
        in_file = names[name].name if name in names else name
        writer.add_tensor(in_file, encoded(weight, stored), raw_dtype=KINDS[stored])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
