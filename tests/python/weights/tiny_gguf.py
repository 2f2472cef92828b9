"""The tiny model as llama.cpp's converter would write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tiny_model import tiny_config, to_bfloat16

from fastpaged.config.keys import Keys
from fastpaged.models.llama import Llama

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def permuted(rows: Bytes, num_heads: int) -> Bytes:
    """The converter's reordering of q and k: row i of a head's first half beside row i of its second."""
    heads = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def encoded(weight: Array, kind: str) -> Bytes:
    """[rows, bytes per row]"""
    if kind == "BF16":
        return to_bfloat16(weight).view(np.uint8)
    data = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
    return np.ascontiguousarray(data).view(np.uint8)


def write_tiny_gguf(path: Path, weights: Mapping[str, Array], kind: str = "BF16", *, tied: bool = False) -> Path:
    """Matrices in `kind`, except where a row is no whole number of blocks; norms in float32."""
    stored = {}
    for name, weight in weights.items():
        own_kind = "F32" if weight.ndim == 1 else ("BF16" if weight.shape[1] % 32 else kind)
        stored[name] = (encoded(weight, own_kind), own_kind)
    return write_gguf(path, tiny_config(tied=tied), stored)


def write_gguf(path: Path, hf_config: Mapping[str, object], stored: Mapping[str, tuple[Bytes, str]]) -> Path:
    """stored: Hugging Face name -> (bytes of each row, kind); a name that is none goes into the file as it is."""
    config = Llama.config_from_hf(Keys("config.json", hf_config))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    names = Llama.gguf_names(config)
    for name, (rows, kind) in stored.items():
        if "q_proj" in name:
            rows = permuted(rows, config.num_heads)
        if "k_proj" in name:
            rows = permuted(rows, config.num_kv_heads)
        in_file = names[name].name if name in names else name
        writer.add_tensor(in_file, rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
