"""A tokenizer from a GGUF file's metadata: byte-level BPE ("gpt2") or SentencePiece's BPE ("llama")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models

from fastpaged.tokenizer.definition import TokenizerDefinition, frame_with
from fastpaged.tokenizer.failures import library_failures
from fastpaged.tokenizer.gguf_metadata import TokenizerMetadata
from fastpaged.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from fastpaged.tokenizer.sentence_piece import PieceType, SentencePieceVocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_BYTE_LEVEL = "gpt2"  # in llama.cpp's words
_SENTENCE_PIECE = "llama"
_ENDS_OF_SEQUENCE = ("eos", "eot", "eom")  # of sequence, turn, message
# Converters name one end, while a chat model has more: by these texts llama.cpp knows them, and so do we.
_TEXTS_OF_ENDS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
    }
)
_NAMED_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# What the ids are where a file with a SentencePiece vocabulary does not say.
_SENTENCE_PIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}


def tokenizer_from_gguf(metadata: Mapping[str, object], source: str) -> TokenizerDefinition:
    """`metadata` as GgufFile gives it; `source` names the file in errors. Raises ModelFormatError."""
    keys = TokenizerMetadata(metadata, source)
    model = keys.required("tokenizer.ggml.model", str)
    if model == _BYTE_LEVEL:
        return _byte_level(keys)
    if model == _SENTENCE_PIECE:
        return _sentence_piece(keys)
    expected = f"{_BYTE_LEVEL!r} (byte-level BPE) or {_SENTENCE_PIECE!r} (SentencePiece's BPE)"
    raise keys.error("tokenizer.ggml.model", expected, repr(model)[:80])


def _byte_level(keys: TokenizerMetadata) -> TokenizerDefinition:
    name = keys.required("tokenizer.ggml.pre", str)
    if name not in PRE_TOKENIZERS:
        raise keys.error("tokenizer.ggml.pre", f"one of {', '.join(PRE_TOKENIZERS)}", repr(name)[:80])
    pre = PRE_TOKENIZERS[name]
    tokens = keys.tokens()
    backend = tokenizers.Tokenizer(_merges(keys, tokens, pre))
    pre.apply(backend)
    backend.decoder = decoders.ByteLevel()
    if keys.has("tokenizer.ggml.token_type"):
        types = keys.types(len(tokens))
        for kind, add in (
            (PieceType.CONTROL, backend.add_special_tokens),
            (PieceType.USER_DEFINED, backend.add_tokens),
        ):
            special = kind == PieceType.CONTROL
            ids = np.flatnonzero(types == kind)
            add([AddedToken(tokens[i], normalized=False, special=special) for i in ids if tokens[i]])
    return _definition(keys, backend, tokens, adds_bos=pre.adds_bos, default_ids={})


def _merges(keys: TokenizerMetadata, tokens: list[str], pre: PreTokenizer) -> models.BPE:
    key = "tokenizer.ggml.merges"
    merges: list[tuple[str, str]] = []
    for merge in keys.strings(key):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise keys.error(f"{key}[{len(merges)}]", "two tokens with a space between", repr(merge)[:80])
        merges.append((left, right))
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    with library_failures(f"{keys.source}: metadata {key}: expected pairs of tokens whose union is a token, found "):
        return models.BPE(vocabulary, merges, ignore_merges=pre.ignores_merges)


def _sentence_piece(keys: TokenizerMetadata) -> TokenizerDefinition:
    tokens = keys.tokens()
    vocabulary = SentencePieceVocabulary(
        source=keys.source,
        pieces=tokens,
        scores=keys.scores(len(tokens)),
        types=_types_with_one_unknown(keys, len(tokens)),
        adds_space=keys.optional("tokenizer.ggml.add_space_prefix", bool, True) is True,
        trims_spaces=keys.optional("tokenizer.ggml.remove_extra_whitespaces", bool, False) is True,
        character_map=_character_map(keys),
    )
    return _definition(keys, vocabulary.backend(), tokens, adds_bos=True, default_ids=_SENTENCE_PIECE_IDS)


def _types_with_one_unknown(keys: TokenizerMetadata, num_tokens: int) -> npt.NDArray[np.integer[Any]]:
    """Converters have called the unknown token a control token, and the padding of the vocabulary unknown tokens."""
    types = np.array(keys.types(num_tokens))
    called_unknown = np.flatnonzero(types == PieceType.UNKNOWN)
    default = int(called_unknown[0]) if len(called_unknown) else _SENTENCE_PIECE_IDS["unknown"]
    types[called_unknown] = PieceType.UNUSED
    unknown = keys.token_id("unknown", num_tokens, default)
    if unknown is not None:
        types[unknown] = PieceType.UNKNOWN
    return types


def _character_map(keys: TokenizerMetadata) -> bytes:
    key = "tokenizer.ggml.precompiled_charsmap"
    rules = keys.optional(key, np.ndarray, None)
    if rules is None:
        return b""
    if rules.dtype.kind not in "iu" or rules.dtype.itemsize != 1:
        raise keys.error(key, "an array of bytes", f"one of {rules.dtype}")
    return rules.tobytes()


def _definition(
    keys: TokenizerMetadata,
    backend: tokenizers.Tokenizer,
    tokens: list[str],
    *,
    adds_bos: bool,
    default_ids: Mapping[str, int],
) -> TokenizerDefinition:
    def id_of(name: str) -> int | None:
        return keys.token_id(name, len(tokens), default_ids.get(name))

    bos, eos = id_of("bos"), id_of("eos")
    adds_bos = keys.optional("tokenizer.ggml.add_bos_token", bool, adds_bos) is True
    adds_eos = keys.optional("tokenizer.ggml.add_eos_token", bool, False) is True
    frame_with(backend, bos if adds_bos else None, eos if adds_eos else None)
    named = {name: id_of(key) for name, key in _NAMED_TOKENS.items()}
    ends = (id_of(name) for name in _ENDS_OF_SEQUENCE)
    return TokenizerDefinition(
        source=keys.source,
        backend=backend,
        bos_token_id=bos,
        eos_token_ids=frozenset(end for end in ends if end is not None) | _ends_by_text(keys, tokens),
        special_tokens={name: tokens[token_id] for name, token_id in named.items() if token_id is not None},
        chat_templates=keys.chat_templates(),
    )


def _ends_by_text(keys: TokenizerMetadata, tokens: list[str]) -> frozenset[int]:
    """Those of _TEXTS_OF_ENDS that no ordinary text becomes: older converters call some user-defined."""
    if not keys.has("tokenizer.ggml.token_type"):
        return frozenset()
    whole = np.isin(keys.types(len(tokens)), (PieceType.CONTROL, PieceType.USER_DEFINED))
    return frozenset(int(token_id) for token_id in np.flatnonzero(whole) if tokens[token_id] in _TEXTS_OF_ENDS)
