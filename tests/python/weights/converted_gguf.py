"""Model folders as llama.cpp's converter would turn them into GGUF files, float32: names from the gguf package."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors.numpy

Array = npt.NDArray[np.float32]


def write_converted(folder: Path, path: Path, architecture: str) -> Path:
    """folder: as save_pretrained writes it, in float32. architecture: llama, qwen2, qwen3 or phi3."""
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_parameters"]
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rotary_dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(rotary_dim)
    if architecture != "phi3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.get("pad_token_id") is not None:
        writer.add_pad_token_id(config["pad_token_id"])
    _add_scaling(writer, config, rope, rotary_dim)
    if architecture == "phi3":
        writer.add_sliding_window(config["sliding_window"] or 0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    for name, values in safetensors.numpy.load_file(folder / "model.safetensors").items():
        if architecture == "llama" and "q_proj" in name:
            values = neighbours_paired(values, heads)
        if architecture == "llama" and "k_proj" in name:
            values = neighbours_paired(values, kv_heads)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def neighbours_paired(rows: Array, num_heads: int) -> Array:
    """Of a rotated projection, row i of a head's first half goes beside row i of its second."""
    heads = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def _add_scaling(writer: gguf.GGUFWriter, config: dict[str, Any], rope: dict[str, Any], rotary_dim: int) -> None:
    kind = rope["rope_type"]
    original: int = rope.get("original_max_position_embeddings", 0)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(original)
    if kind == "longrope":
        stretch = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    if kind == "llama3":
        periods = original / (2 * np.pi * rope["rope_theta"] ** (np.arange(0, rotary_dim, 2) / rotary_dim))
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.clip((periods - low) / (high - low), 0, 1)
        factors = 1 / ((1 - kept) / rope["factor"] + kept)
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
