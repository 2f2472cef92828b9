from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import transformers
from tokenizer.small_tokenizers import CHATML, byte_fallback, trained_byte_level, write_folder, write_gguf
from tokenizer.strings import strings
from tokenizers import decoders
from tokenizers.processors import TemplateProcessing

from fastpaged.errors import ModelFormatError
from fastpaged.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_folder_and_a_gguf_file_of_the_same_model_give_the_same_ids(tmp_path: Path) -> None:
    from_folder = load_tokenizer(write_folder(tmp_path / "folder", trained_byte_level()))
    from_gguf = load_tokenizer(write_gguf(tmp_path / "model.gguf", trained_byte_level()))
    assert from_folder.vocab_size == from_gguf.vocab_size
    for text in strings(seed=7, count=1000):
        assert from_folder.encode(text) == from_gguf.encode(text)


def test_tokenizer_json_is_preferred_to_a_gguf_file_beside_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", trained_byte_level())
    assert load_tokenizer(write_folder(tmp_path, byte_fallback())).vocab_size == byte_fallback().get_vocab_size()


CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "named tokens": {"bos_token": "<|im_start|>", "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}},
    "bos": {"bos_token": "<|im_start|>", "add_bos_token": True},
    "bos and eos": {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": True,
        "add_eos_token": True,
    },
    "no bos": {"bos_token": "<|im_start|>", "add_bos_token": False},
    "a token of the vocabulary made special": {"eos_token": "part", "pad_token": "name"},
    "a declared token": {
        "added_tokens_decoder": {
            "703": {"content": "<|new|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False},
            "704": {"content": "<plain>", "special": False, "normalized": False, "lstrip": True, "rstrip": False},
        }
    },
    "more special tokens": {"extra_special_tokens": ["pass"]},
}


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("frame", [None, "<file_sep> $A"])
def test_tokenizer_config_means_what_it_means_to_transformers(tmp_path: Path, case: str, frame: str | None) -> None:
    backend = trained_byte_level()
    if frame is not None:
        backend.post_processor = TemplateProcessing(single=frame, special_tokens=[("<file_sep>", 4)])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **CONFIGS[case]}
    folder = write_folder(tmp_path / "model", backend, tokenizer_config=config)
    tokenizer = load_tokenizer(folder)
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    samples = ["", "a part, its name to pass", " <|new|> x <plain> y", *strings(seed=8, count=400)]
    for text in samples:
        ids = oracle.encode(text)
        assert tokenizer.encode(text) == ids
        for skip in (True, False):
            expected = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


def test_a_special_token_without_a_row_in_the_model_gets_no_id(tmp_path: Path) -> None:
    config = {"pad_token": "[PAD]", "additional_special_tokens": ["[X]"]}
    tokenizer = load_tokenizer(write_folder(tmp_path / "model", trained_byte_level(), tokenizer_config=config))
    assert tokenizer.vocab_size == 703
    assert max(tokenizer.encode("[PAD][X]")) < 703


def test_truncation_and_padding_in_tokenizer_json_do_not_cut_prompts(tmp_path: Path) -> None:
    backend = trained_byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(write_folder(tmp_path / "model", backend))
    assert tokenizer.decode(tokenizer.encode("a much longer text")) == "a much longer text"


def test_a_frame_in_tokenizer_json_adds_no_second_bos(tmp_path: Path) -> None:
    backend = trained_byte_level()
    backend.post_processor = TemplateProcessing(single="<file_sep> $A", special_tokens=[("<file_sep>", 4)])
    tokenizer = load_tokenizer(write_folder(tmp_path / "model", backend, tokenizer_config={"bos_token": "<file_sep>"}))
    assert tokenizer.bos_token_id == 4
    assert (
        tokenizer.encode("<file_sep>a")
        == tokenizer.encode("a")
        == [4, *tokenizer.encode("a", add_special_tokens=False)]
    )


def test_ends_of_sequence_are_the_union_of_all_files_and_the_chat_turns_end(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "model",
        trained_byte_level(),
        generation_config={"eos_token_id": [3, 4]},
        config={"eos_token_id": 5, "bos_token_id": 1},
        tokenizer_config={"eos_token": "<|endoftext|>", "chat_template": CHATML},
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_ids == {0, 2, 3, 4, 5}
    assert tokenizer.bos_token_id == 1


@pytest.mark.parametrize("nothing", [None, -1, []])
def test_no_end_of_sequence_is_no_error(tmp_path: Path, nothing: object) -> None:
    folder = write_folder(tmp_path / "model", trained_byte_level(), config={"eos_token_id": nothing})
    assert load_tokenizer(folder).eos_token_ids == frozenset()


TEMPLATES: dict[str, dict[str, Any]] = {
    "a string": {"tokenizer_config": {"chat_template": "yes"}},
    "a list of named ones": {
        "tokenizer_config": {
            "chat_template": [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
        }
    },
    "a file": {"chat_template": "yes", "tokenizer_config": {"chat_template": "no"}},
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_the_default_chat_template_is_found(tmp_path: Path, case: str) -> None:
    folder = write_folder(tmp_path / "model", trained_byte_level(), **TEMPLATES[case])
    assert load_tokenizer(folder).apply_chat_template(MESSAGES) == "yes"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a config that is a list": ({"config": [1]}, r"config\.json: expected a JSON object, found list"),
    "an end that is a text": ({"config": {"eos_token_id": "2"}}, r"config\.json: eos_token_id: expected a token id"),
    "an end of -2": ({"generation_config": {"eos_token_id": [1, -2]}}, r"generation_config\.json: eos_token_id"),
    "an end beyond any vocabulary": ({"config": {"eos_token_id": 10**30}}, r"config\.json: eos_token_id"),
    "an end beyond the vocabulary": (
        {"generation_config": {"eos_token_id": [1, 703]}},
        r"generation_config\.json: eos_token_id: expected a token id below 703, the size of the vocabulary, found 703",
    ),
    "an end beyond the padded vocabulary": (
        {"config": {"eos_token_id": 720, "vocab_size": 720}},
        r"config\.json: eos_token_id: expected a token id below 720, .*found 720",
    ),
    "a beginning beyond the vocabulary": (
        {"config": {"bos_token_id": 703}},
        r"config\.json: bos_token_id: .* below 703",
    ),
    "a declared token that is a text": (
        {"tokenizer_config": {"added_tokens_decoder": {"703": "<|x|>"}}},
        r"added_tokens_decoder\[703\]: expected a token: an object",
    ),
    "a declared token with an id of 5000 digits": (
        {"tokenizer_config": {"added_tokens_decoder": {"9" * 5000: {"content": "<|x|>"}}}},
        "expected an object of token ids",
    ),
    "a token of half a surrogate pair": ({"tokenizer_config": {"eos_token": "\ud800"}}, "eos_token: expected a token"),
    "an end of true": ({"generation_config": {"eos_token_id": True}}, r"generation_config\.json: eos_token_id"),
    "a bos that is a number": (
        {"tokenizer_config": {"bos_token": 1}},
        r"tokenizer_config\.json: bos_token: expected a token",
    ),
    "a template that is a number": (
        {"tokenizer_config": {"chat_template": 1}},
        "chat_template: expected a string or a list",
    ),
    "a template without a name": (
        {"tokenizer_config": {"chat_template": [{"template": "x"}]}},
        "chat_template: expected a string or a list of",
    ),
    "declared tokens that are a list": (
        {"tokenizer_config": {"added_tokens_decoder": []}},
        "expected an object of token ids",
    ),
    "a declared token without a text": (
        {"tokenizer_config": {"added_tokens_decoder": {"703": {"special": True}}}},
        r"added_tokens_decoder\[703\]: expected a token",
    ),
    "a declared token with an id that is taken": (
        {"tokenizer_config": {"added_tokens_decoder": {"5": {"content": "<|x|>"}}}},
        "expected id 5, found 703 as the next free one",
    ),
    "a declared token with a flag that is a text": (
        {"tokenizer_config": {"added_tokens_decoder": {"703": {"content": "<|x|>", "special": "yes"}}}},
        r"added_tokens_decoder\[703\]: expected flags that are true or false",
    ),
    "special tokens that are a text": (
        {"tokenizer_config": {"extra_special_tokens": "x"}},
        "expected a list of tokens",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(tmp_path: Path, case: str) -> None:
    files, message = REFUSED[case]
    folder = write_folder(tmp_path / "model", trained_byte_level(), **files)
    with pytest.raises(ModelFormatError, match=message):
        load_tokenizer(folder)


def test_an_end_within_the_models_padded_vocabulary_is_an_end(tmp_path: Path) -> None:
    files = {"config": {"eos_token_id": 719, "vocab_size": 720}}
    assert load_tokenizer(write_folder(tmp_path, trained_byte_level(), **files)).eos_token_ids == {719}


@pytest.mark.parametrize(
    ("file", "key"),
    [(file, key) for file in ("config", "generation_config") for key in ("eos_token_id", "bos_token_id", "vocab_size")]
    + [
        ("tokenizer_config", key)
        for key in ("bos_token", "eos_token", "added_tokens_decoder", "extra_special_tokens", "chat_template")
    ],
)
def test_any_value_of_any_key_is_read_or_refused_as_a_bad_model(tmp_path: Path, file: str, key: str) -> None:
    odd: tuple[object, ...] = (
        None,
        [],
        {},
        [["x"]],
        [{}],
        "x",
        "",
        True,
        -1,
        0,
        2**31,
        10**30,
        0.5,
        float("nan"),
        {"5": None},
        {"content": 1},
    )
    for number, value in enumerate(odd):
        files: dict[str, Any] = {file: {key: value}}
        folder = write_folder(tmp_path / str(number), trained_byte_level(), **files)
        try:
            tokenizer = load_tokenizer(folder)
        except ModelFormatError:
            continue
        assert all(0 <= token_id < 703 for token_id in tokenizer.eos_token_ids)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja"]
)
def test_a_pipe_within_the_folder_is_refused_without_waiting_for_its_writer(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path, trained_byte_level())
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelFormatError, match=f"{name}: expected a regular file, found a named pipe"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": {"type": "BPE"}}', b"\xff", b"[" * 100_000])
def test_a_tokenizer_json_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: expected a tokenizer of the tokenizers library"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_json_that_makes_the_library_panic_is_refused(tmp_path: Path) -> None:
    definition = json.loads(trained_byte_level().to_str())
    definition["model"]["continuing_subword_prefix"] = "a prefix longer than any token"
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ModelFormatError, match="expected a tokenizer of the tokenizers library, found range"):
        load_tokenizer(tmp_path)
    strips_too_much = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 0, 9)])
    tokenizer = load_tokenizer(write_folder(tmp_path, byte_fallback(strips_too_much)))
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: decoding failed: index out of bounds"):
        tokenizer.decode(tokenizer.encode("▁"))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_config_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    write_folder(tmp_path, trained_byte_level())
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"generation_config\.json: expected (JSON in UTF-8|UTF-8 text)"):
        load_tokenizer(tmp_path)
