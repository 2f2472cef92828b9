"""The tokenizer built from GGUF metadata against `transformers`, id by id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import transformers
from tokenizer.small_tokenizers import CHATML, smollm_pre_tokenizer, trained_byte_level, write_gguf
from tokenizer.strings import strings
from tokenizers import AddedToken, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from fastpaged.tokenizer import Tokenizer, load_tokenizer
from fastpaged.tokenizer.byte_alphabet import CHARACTER_OF_BYTE

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Hi <b>"you"</b> & 你好\n'},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "2 + 2?"},
]


def assert_same(tokenizer: Tokenizer, oracle: Any, texts: list[str]) -> None:
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text), text
        for skip in (True, False):
            expected = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected, text


def without_numerals(texts: list[str]) -> list[str]:
    return [text for text in texts if not any(character.isnumeric() for character in text)]


@pytest.fixture(scope="module")
def plain_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # transformers 5.24 loses user-defined tokens that hold a character beyond the byte alphabet, such as a space.
    return write_gguf(tmp_path_factory.mktemp("plain") / "model.gguf", trained_byte_level(user_defined=["<tool>"]))


def transformers_from_gguf(path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_a_tokenizer_from_gguf_equals_transformers_over_the_original_definition(tmp_path: Path) -> None:
    original = transformers.PreTrainedTokenizerFast(tokenizer_object=trained_byte_level())
    path = write_gguf(tmp_path / "model.gguf", trained_byte_level())
    assert_same(load_tokenizer(path), original, strings(seed=2, count=2500))


def test_a_tokenizer_from_gguf_equals_transformers_reading_the_same_file(plain_gguf: Path) -> None:
    # transformers 5.24 has no entry for `smollm` and cuts as gpt-2 does: "x  3" becomes "x", "Ġ", "Ġ", "3" and not
    # "x", "ĠĠ", "3". It is an oracle for the texts in which there is no numeral.
    texts = without_numerals(strings(seed=3, count=6000))
    assert len(texts) > 2000
    assert_same(load_tokenizer(plain_gguf), transformers_from_gguf(plain_gguf), texts)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_other_ways_to_cut_text_equal_transformers_reading_the_same_file(tmp_path: Path, pre: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", trained_byte_level(user_defined=["<tool>"]), pre=pre)
    oracle = transformers_from_gguf(path)
    # What tokenizer.json files of these families say beside the cut and transformers does not take from a GGUF file.
    oracle.backend_tokenizer.normalizer = tokenizers.normalizers.NFC() if pre == "qwen2" else None
    oracle.backend_tokenizer.model.ignore_merges = pre == "llama-bpe"
    assert_same(load_tokenizer(path), oracle, strings(seed=4, count=2000))


def test_the_byte_alphabet_is_that_of_the_tokenizers_library() -> None:
    assert sorted(CHARACTER_OF_BYTE) == sorted(ByteLevel.alphabet())
    for byte in range(128):
        assert decoders.ByteLevel().decode([CHARACTER_OF_BYTE[byte]]) == chr(byte)
    for text in ("é", "ÿ", "€", "😀", "\u00ad", "\u2122"):
        assert decoders.ByteLevel().decode([CHARACTER_OF_BYTE[byte] for byte in text.encode()]) == text


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_chat_is_rendered_as_transformers_renders_it(plain_gguf: Path, add_generation_prompt: bool) -> None:
    expected = transformers_from_gguf(plain_gguf).apply_chat_template(
        CONVERSATION, chat_template=CHATML, add_generation_prompt=add_generation_prompt, tokenize=False
    )
    rendered = load_tokenizer(plain_gguf).apply_chat_template(CONVERSATION, add_generation_prompt=add_generation_prompt)
    assert rendered == expected


@pytest.fixture(scope="module")
def real_gguf() -> Path:
    path = os.environ.get("FASTPAGED_TEST_GGUF", "")
    if not Path(path).is_file():
        pytest.fail(f"FASTPAGED_TEST_GGUF: expected the path of SmolLM2's GGUF file, found {path!r}")
    return Path(path)


@pytest.fixture(scope="module")
def real_definition(real_gguf: Path) -> Any:
    """SmolLM2's tokenizer.json, with the vocabulary as the `gguf` package reads it."""
    fields = gguf.GGUFReader(real_gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = smollm_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    specials = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.real_model
def test_smollm2_equals_transformers_over_its_own_definition(real_gguf: Path, real_definition: Any) -> None:
    texts = strings(seed=5, count=4000)
    assert len(set(texts)) > 3500
    assert_same(load_tokenizer(real_gguf), real_definition, texts)


@pytest.mark.real_model
def test_smollm2_equals_transformers_reading_the_same_file(real_gguf: Path) -> None:
    texts = without_numerals(strings(seed=6, count=8000))
    assert len(texts) > 2000
    assert_same(load_tokenizer(real_gguf), transformers_from_gguf(real_gguf), texts)


@pytest.mark.real_model
def test_smollm2_ends_where_its_files_say_and_chats_as_transformers_does(real_gguf: Path) -> None:
    tokenizer = load_tokenizer(real_gguf)
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (49152, 1, frozenset({0, 2}))
    expected = transformers_from_gguf(real_gguf).apply_chat_template(
        CONVERSATION, add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.apply_chat_template(CONVERSATION) == expected
