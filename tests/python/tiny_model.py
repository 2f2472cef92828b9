"""A tiny random Llama with a tokenizer, written as a model folder: what tests run instead of a real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastpaged.config.keys import Keys
from fastpaged.models.llama import Llama
from fastpaged.models.llama_config import LlamaConfig

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# With the special tokens and 256 bytes: 300 tokens.
_MERGES = tuple(
    pair.strip()
    for line in (
        "Ġ t | h e | i n | r e | o n | Ġt he | a t | e r | Ġ a | n d | o r | e n | Ġ s | e s | i s | i t | in g | Ġ w",
        "o u | Ġ o | Ġo f | Ġa nd | Ġt o | Ġ in | a l | a n | l l | s t | Ġ c | Ġ p | Ġ b | Ġ f | Ġ is | a r | i c",
        "o m | a s | Ġ h | l e | v e | Ġw e",
    )
    for pair in line.split("|")
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_config(*, tied: bool = False) -> dict[str, object]:
    """config.json: no size is a multiple of another's tile, so that edges are met."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(SPECIAL_TOKENS) + 256 + len(_MERGES),
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    }


def tiny_llama_config(*, tied: bool = False) -> LlamaConfig:
    return Llama.config_from_hf(Keys("config.json", tiny_config(tied=tied)))


def tiny_weights(*, seed: int = 0, tied: bool = False) -> dict[str, npt.NDArray[np.float32]]:
    """By Hugging Face name: every value a bfloat16. Scaled so that attention looks at few keys and logits are far
    apart: a mistake anywhere is seen in the logits."""
    random = np.random.default_rng(seed)
    weights = {}
    values: npt.NDArray[np.float32]
    for name, shape in Llama.weight_shapes(tiny_llama_config(tied=tied)).items():
        values = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            values = 1 + values / np.float32(8)
        elif "embed_tokens" not in name:
            values *= np.float32((2 if "q_proj" in name or "lm_head" in name else 1) / np.sqrt(shape[1]))
        weights[name] = from_bfloat16(to_bfloat16(values))
    return weights


def write_tiny_llama(path: Path, *, seed: int = 0, tokenizer: bool = True, tied: bool = False) -> Path:
    """Makes the folder `path` with config.json and model.safetensors, and unless told otherwise a byte-level BPE
    tokenizer.json, tokenizer_config.json (with a chat template) and generation_config.json. Returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "config.json", tiny_config(tied=tied))
    write_safetensors(path / "model.safetensors", tiny_weights(seed=seed, tied=tied))
    if tokenizer:
        write_json(path / "tokenizer.json", _tokenizer())
        write_json(path / "tokenizer_config.json", _tokenizer_config())
        write_json(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    return path


def write_safetensors(path: Path, weights: dict[str, npt.NDArray[np.float32]]) -> None:
    """As bfloat16, rounded. By hand: safetensors' own writer takes bfloat16 from torch alone."""
    header: dict[str, object] = {}
    data = b""
    for name, values in weights.items():
        end = len(data) + 2 * values.size
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [len(data), end]}
        data += to_bfloat16(values).tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bits, rounded to nearest even. REQUIRES: no NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _byte_characters() -> list[str]:
    """The printable stand-ins of byte-level BPE, in the order of the bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def _tokenizer() -> dict[str, object]:
    tokens = [*SPECIAL_TOKENS, *_byte_characters(), *(merge.replace(" ", "") for merge in _MERGES)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in _MERGES],
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 512,
    }
