"""A Hugging Face folder as llama.cpp's converter would write it, for families whose weights it rearranges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors.numpy

Array = npt.NDArray[np.float32]


def write_twin(folder: Path, path: Path, kind: str = "F32") -> Path:
    """kind: of matrices whose rows are whole blocks of it; everything else is float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    arch = {"gemma3_text": "gemma3", "gpt2": "gpt2", "gpt_neox": "gptneox", "falcon": "falcon"}[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    num_layers = {"gemma3": _gemma3, "gpt2": _gpt2, "gptneox": _gptneox, "falcon": _falcon}[arch](writer, config)
    writer.add_block_count(num_layers)
    writer.add_vocab_size(config["vocab_size"])
    (kind_of_arch,) = (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind_of_arch, num_layers)
    for name, weight in safetensors.numpy.load_file(folder / "model.safetensors").items():
        converted = np.ascontiguousarray(_converted(arch, name, weight, config))
        block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
        own = gguf.GGMLQuantizationType[kind if weight.ndim > 1 and converted.shape[-1] % block == 0 else "F32"]
        in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert in_file is not None, name
        writer.add_tensor(in_file, gguf.quants.quantize(converted, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(arch: str, name: str, weight: Array, config: dict[str, Any]) -> Array:
    if arch == "gemma3" and name.endswith("norm.weight"):
        return weight + np.float32(1)
    if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_fc.weight", ".c_proj.weight")):
        return weight.T
    if arch in ("gptneox", "falcon") and ".query_key_value." in name:
        heads = config["num_attention_heads"]
        groups = heads
        if arch == "falcon":
            groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
        by_group = weight.reshape(groups, heads // groups + 2, config["hidden_size"] // heads, -1)
        parts = [by_group[:, :-2], by_group[:, -2], by_group[:, -1]]
        return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])
    return weight


def _gemma3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> int:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    return int(config["num_hidden_layers"])


def _gpt2(writer: gguf.GGUFWriter, config: dict[str, Any]) -> int:
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    return int(config["n_layer"])


def _gptneox(writer: gguf.GGUFWriter, config: dict[str, Any]) -> int:
    rope = config["rope_parameters"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * head_dim))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    return int(config["num_hidden_layers"])


def _falcon(writer: gguf.GGUFWriter, config: dict[str, Any]) -> int:
    writer.add_context_length(2048)
    writer.add_tensor_data_layout("jploski")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(4 * config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_kv_heads"] if config["new_decoder_architecture"] else 1)
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    return int(config["num_hidden_layers"])
