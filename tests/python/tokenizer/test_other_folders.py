"""Folders without tokenizer.json: vocab.json with merges.txt, and what only transformers can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizer.small_tokenizers import trained_byte_level, trained_sentence_piece, write_folder
from tokenizer.strings import strings

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.tokenizer import load_tokenizer
from fastpaged.tokenizer.pre_tokenizers import PRE_TOKENIZERS

FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # cut of text, tokenizer_config, config
    "GPT-2": ("gpt-2", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "GPT-2, whose tokenizer_config says nothing": ("gpt-2", {"model_max_length": 1024}, {"model_type": "gpt2"}),
    "OPT": (
        "gpt-2",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "normalized": True},
            "eos_token": "<|im_start|>",
            "unk_token": "<|im_start|>",
            "pad_token": "<file_sep>",
            "add_bos_token": True,
        },
        {"model_type": "opt", "eos_token_id": 1},
    ),
    "a space before the text": ("gpt-2", {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}, {}),
    "Qwen2": (
        "qwen2",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "added_tokens_decoder": {"700": {"content": "<think>", "special": False, "normalized": False}},
        },
        {},
    ),
}


def write_older_folder(folder: Path, cut: str, tokenizer_config: dict[str, Any], config: dict[str, Any]) -> Path:
    backend = trained_byte_level(user_defined=())
    PRE_TOKENIZERS[cut].apply(backend)
    folder.mkdir(exist_ok=True)
    backend.model.save(str(folder))  # vocab.json and merges.txt
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_vocabulary_and_merges_mean_what_they_mean_to_transformers(tmp_path: Path, name: str) -> None:
    folder = write_older_folder(tmp_path / "model", *FAMILIES[name])
    oracle_class = transformers.Qwen2Tokenizer if name == "Qwen2" else transformers.GPT2Tokenizer
    tokenizer, oracle = load_tokenizer(folder), oracle_class.from_pretrained(folder)
    for text in ["", "<|endoftext|>", " <think> x", *strings(seed=41, count=800)]:
        ids = tokenizer.encode(text)
        expected = oracle.encode(text)
        assert ids == (expected[1:] if name == "OPT" and expected[:2] == [1, 1] else expected), text  # never two
        for skip in (True, False):
            expected_text = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected_text


def test_the_beginning_and_the_end_are_those_of_all_files(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_older_folder(tmp_path / "opt", *FAMILIES["OPT"]))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, frozenset({1}))
    cut, tokenizer_config, _ = FAMILIES["GPT-2, whose tokenizer_config says nothing"]
    config = {"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0}
    tokenizer = load_tokenizer(write_older_folder(tmp_path / "gpt2", cut, tokenizer_config, config))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, frozenset({0}))
    assert tokenizer.encode("<|endoftext|>") == [0]


REFUSED: dict[str, tuple[str, str, str]] = {  # file, content, message
    "an id that is a text": ("vocab.json", '{"a": "0"}', r"vocab\.json: 'a': expected a token id, found '0'"),
    "an id below none": ("vocab.json", '{"a": -1}', r"vocab\.json: 'a': expected a token id, found -1"),
    "an id twice": ("vocab.json", '{"a": 0, "b": 0}', "an id of its own for every token"),
    "a merge of one token": (
        "merges.txt",
        "#version: 0.2\nĠt",
        r"merges\.txt: line 2: expected two tokens .* found 'Ġt'",
    ),
    "a merge of three tokens": ("merges.txt", "a b c", r"merges\.txt: line 1: expected two tokens"),
    "a merge into no token": ("merges.txt", "! Ġ", r"merges\.txt: expected pairs of tokens whose union is a token"),
    "a space before Qwen2's text": (
        "tokenizer_config.json",
        '{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true}',
        "add_prefix_space: expected false where text is cut as qwen2, found true",
    ),
    "a flag that is a number": (
        "tokenizer_config.json",
        '{"add_bos_token": 1}',
        "add_bos_token: expected true or false",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(tmp_path: Path, case: str) -> None:
    file, content, message = REFUSED[case]
    folder = write_older_folder(tmp_path / "model", "gpt-2", {}, {"model_type": "gpt2"})
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(ModelFormatError, match=message):
        load_tokenizer(folder)


def test_the_files_have_an_order(tmp_path: Path) -> None:
    """tokenizer.json, then vocab.json with merges.txt, then tokenizer.model."""
    (tmp_path / "tokenizer.model").write_bytes(trained_sentence_piece())
    assert load_tokenizer(tmp_path).vocab_size == 1000
    write_older_folder(tmp_path, "gpt-2", {}, {"model_type": "gpt2"})
    assert load_tokenizer(tmp_path).vocab_size == 700
    write_folder(tmp_path, trained_byte_level())
    assert load_tokenizer(tmp_path).vocab_size == 703


# ---- transformers


def write_bert(folder: Path) -> Path:
    """A kind that fastpaged does not read: WordPiece in vocab.txt."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", ",", "!"]
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "eos_token_id": 3}))
    return folder


def test_what_fastpaged_cannot_read_transformers_may(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bert(tmp_path))
    assert tokenizer.encode("Hello, worlds!") == [2, 5, 8, 6, 7, 9, 3]
    assert tokenizer.decode([2, 5, 8, 6, 7, 9, 3]) == "hello, worlds!"
    assert tokenizer.eos_token_ids == {3}


def test_without_transformers_the_error_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    expected = r"must hold tokenizer\.json, vocab\.json with merges\.txt, .*tokenizer\.model, or one \.gguf file; "
    with pytest.raises(ModelNotFoundError, match=f"{expected}.*is not installed .*pip install transformers"):
        load_tokenizer(write_bert(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.tiktoken"])
def test_what_transformers_cannot_read_either_is_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("IQ== 0\nIg== 1\n")  # a list in text, as of Llama 3's first release
    with pytest.raises(ModelNotFoundError, match="it has none that fastpaged can read, and transformers failed too"):
        load_tokenizer(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a")
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotFoundError, match="transformers failed too"):
        load_tokenizer(tmp_path)


def test_transformers_is_imported_only_when_nothing_else_serves(tmp_path: Path) -> None:
    write_folder(tmp_path, trained_byte_level())
    program = (
        "import sys; from fastpaged.tokenizer import load_tokenizer; load_tokenizer(sys.argv[1]); "
        "print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
