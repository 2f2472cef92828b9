"""Tokenizers small enough to make in a test, and the GGUF file of one."""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import sentencepiece
import tokenizers
from tokenizer.strings import SPECIAL_TOKENS, strings
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from fastpaged.tokenizer.sentence_piece_file import read_sentence_piece_model

if TYPE_CHECKING:
    from collections.abc import Sequence

USER_DEFINED_TOKENS = ("<tool>", "  \t", "<｜tool▁end｜>")
SENTENCE_PIECE_SYMBOLS = ("<tool>", "\n\n", "▁▁", "▁▁▁▁")  # user-defined; Gemma has such runs
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def smollm_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """As in SmolLM2's own tokenizer.json."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )


def trained_byte_level(user_defined: Sequence[str] = USER_DEFINED_TOKENS) -> tokenizers.Tokenizer:
    """SmolLM2's pipeline: special tokens, merges learned from the test strings (to 700 in all), then user_defined."""
    return tokenizers.Tokenizer.from_str(_trained(tuple(user_defined)))


@cache
def _trained(user_defined: tuple[str, ...]) -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = smollm_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(strings(seed=1, count=400), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    return tokenizer.to_str()


def write_gguf(path: Path, tokenizer: tokenizers.Tokenizer, *, pre: str = "smollm", **metadata: Any) -> Path:
    """`metadata` goes below `tokenizer.`, with `__` for `.`; None leaves a key out."""
    definition = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in definition["added_tokens"]}
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    types = [1 if i not in added else 3 if added[i]["special"] else 4 for _, i in vocabulary]
    values: dict[str, Any] = {
        "ggml__model": "gpt2",
        "ggml__pre": pre,
        "ggml__tokens": [token for token, _ in vocabulary],
        "ggml__token_type": types,
        "ggml__merges": [" ".join(merge) for merge in definition["model"]["merges"]],
        "ggml__bos_token_id": 1,
        "ggml__eos_token_id": 0,
        "ggml__add_bos_token": False,
        "chat_template": CHATML,
    }
    return _write_gguf(path, len(vocabulary), values | metadata)


def write_sentence_piece_gguf(path: Path, model: bytes, user_defined: Sequence[str] = (), **metadata: Any) -> Path:
    """The file that llama.cpp's converter makes of tokenizer.model; `metadata` as for write_gguf.

    user_defined: the pieces that are, which `sentencepiece` does not tell. Their ▁ is written as a space.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(processor.vocab_size())
    pieces = [processor.id_to_piece(i) for i in ids]
    values: dict[str, Any] = {
        "ggml__model": "llama",
        "ggml__pre": "default",
        "ggml__tokens": [piece.replace("▁", " ") if piece in user_defined else piece for piece in pieces],
        "ggml__scores": [processor.get_score(i) for i in ids],
        "ggml__token_type": [4 if pieces[i] in user_defined else _type_of(processor, i) for i in ids],
        "ggml__bos_token_id": processor.bos_id(),
        "ggml__eos_token_id": processor.eos_id(),
        "ggml__unknown_token_id": processor.unk_id(),
    }
    return _write_gguf(path, len(ids), values | metadata)


def _type_of(processor: sentencepiece.SentencePieceProcessor, token_id: int) -> int:
    if processor.is_unknown(token_id):
        return 2
    if processor.is_byte(token_id):
        return 6
    if processor.is_control(token_id):
        return 3
    return 1


def _write_gguf(path: Path, vocab_size: int, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in metadata.items():
        key = "tokenizer." + name.replace("__", ".")
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((vocab_size, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, tokenizer: tokenizers.Tokenizer, **files: Any) -> Path:
    """`files`: name without its extension -> JSON content, or text for chat_template."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        if isinstance(content, str):
            (folder / f"{name}.jinja").write_text(content, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@cache
def trained_sentence_piece(**options: Any) -> bytes:
    """tokenizer.model, trained on the test strings; without options as Llama 2's, but small."""
    model = io.BytesIO()
    defaults: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 1000,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(strings(seed=1, count=0) * 3), model_writer=model, **(defaults | options)
    )
    return model.getvalue()


def sentence_piece_backend(model: bytes) -> tokenizers.Tokenizer:
    """The pipeline that fastpaged makes of a tokenizer.model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(model)
        return read_sentence_piece_model(path).vocabulary.backend()


def byte_fallback(decoder: decoders.Decoder | None = None) -> tokenizers.Tokenizer:
    """In the manner of SentencePiece: words begin with ▁, and bytes that no token spells are tokens of their own."""
    words = ["▁", "▁▁", "▁the", "a", "b", "th", "é", "世", "�", "▁a", "x</w>", "##ing", "."]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoder or decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer
