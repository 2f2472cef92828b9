"""A small tokenizer of every kind that the families have, and token ids to try them with."""

from __future__ import annotations

import json
import os.path
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import tokenizers
from tokenizer.small_tokenizers import (
    SENTENCE_PIECE_SYMBOLS,
    byte_fallback,
    sentence_piece_backend,
    trained_byte_level,
    trained_sentence_piece,
)
from tokenizer.strings import strings
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from fastpaged.tokenizer import Tokenizer
from fastpaged.tokenizer.byte_alphabet import CHARACTER_OF_BYTE
from fastpaged.tokenizer.definition import TokenizerDefinition

KINDS = ("byte-level", "byte fallback", "metaspace", "Llama", "Gemma", "unigram")


@dataclass(frozen=True)
class Kind:
    """A tokenizer, and how a byte is spelled by a token of its own."""

    tokenizer: Tokenizer
    id_of_byte: Callable[[int], int]
    vocab_size: int
    special_ids: tuple[int, ...]
    is_byte_level: bool


def wrapped(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(TokenizerDefinition("test", backend, bos_token_id=None, eos_token_ids=frozenset({2})))


@cache
def kind(name: str) -> Kind:
    backend = _backend(name)
    vocabulary = backend.get_vocab()
    byte_name = CHARACTER_OF_BYTE if name == "byte-level" else [f"<0x{byte:02X}>" for byte in range(256)]
    special = sorted(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    return Kind(
        wrapped(backend),
        lambda byte: vocabulary[byte_name[byte]],
        len(vocabulary),
        tuple(special),
        name == "byte-level",
    )


def _backend(name: str) -> tokenizers.Tokenizer:
    if name == "byte-level":
        return trained_byte_level()
    if name == "byte fallback":
        return byte_fallback()
    if name == "metaspace":
        return _trained_metaspace()
    if name == "unigram":
        return sentence_piece_backend(trained_sentence_piece(model_type="unigram", vocab_size=570))
    symbols = ",".join(SENTENCE_PIECE_SYMBOLS)
    options = {"Llama": {}, "Gemma": {"add_dummy_prefix": False, "user_defined_symbols": symbols}}
    return sentence_piece_backend(trained_sentence_piece(**options[name]))


def _trained_metaspace() -> tokenizers.Tokenizer:
    """SentencePiece's BPE as Llama 2 has it: ▁ for spaces, byte tokens, one space dropped from the start."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(strings(seed=2, count=300), trainer)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = []  # to the trainer, the bytes are special too
    trained = tokenizers.Tokenizer.from_str(json.dumps(definition))
    trained.add_special_tokens(special)
    return trained


def some_ids(random_: random.Random, kind: Kind, most: int) -> list[int]:
    """Words, characters cut into bytes and perhaps cut short, bytes that are no UTF-8, any token at all."""
    ids: list[int] = []
    for _ in range(random_.randint(0, most)):
        choice = random_.random()
        if choice < 0.4:
            ids += kind.tokenizer.encode(random_.choice(["the cat", " and", "a", "é", "ab ab", "世界"]))[:3]
        elif choice < 0.7:
            raw = random_.choice(["é", "€", "😀", "ab", "\n"]).encode()
            ids += [kind.id_of_byte(byte) for byte in raw[: random_.randint(1, 4)]]
        elif choice < 0.8:
            ids.append(kind.id_of_byte(random_.choice([0x80, 0xC0, 0xE2, 0xED, 0xF0, 0xFF])))
        else:
            ids.append(random_.randrange(3, kind.vocab_size))
    return ids


def law(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], *, skip: bool = True) -> str:
    """text(prompt + output) after its longest common prefix with text(prompt)."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    return whole[len(os.path.commonprefix([before, whole])) :]  # noqa: RUF071 - of characters, as it says
