from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer.small_tokenizers import USER_DEFINED_TOKENS, trained_byte_level, write_gguf

from fastpaged.errors import InvalidRequestError, ModelFormatError, ModelNotFoundError
from fastpaged.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

WELL_KNOWN_ENDS = {0, 2}  # <|endoftext|>, <|im_end|>
HELLO = "Hello, world! 👩‍👧"


def small(tmp_path: Path, **metadata: Any) -> Path:
    return write_gguf(tmp_path / "model.gguf", trained_byte_level(), **metadata)


def test_text_survives_the_way_to_ids_and_back(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path))
    assert tokenizer.decode(tokenizer.encode(HELLO)) == HELLO
    assert tokenizer.vocab_size == 703


def test_control_and_user_defined_tokens_are_found_in_text_as_a_whole(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path))
    assert tokenizer.encode("<|im_end|>") == [2]
    assert [tokenizer.encode(token) for token in USER_DEFINED_TOKENS] == [[700], [701], [702]]
    ids = tokenizer.encode(f"a<|im_end|>{USER_DEFINED_TOKENS[2]}b")
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"a<|im_end|>{USER_DEFINED_TOKENS[2]}b"
    assert tokenizer.decode(ids) == f"a{USER_DEFINED_TOKENS[2]}b", "user-defined tokens are text"


def test_one_tokens_text_shows_special_tokens_and_halves_of_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path))
    assert tokenizer.token_text(2) == "<|im_end|>"
    half = trained_byte_level().get_vocab()["Ã"]
    assert tokenizer.token_text(half) == "\ufffd"
    assert tokenizer.token_text(10_000) == "", "models pad their vocabularies"


@pytest.mark.parametrize(
    ("adds_bos", "adds_eos", "frame"),
    [(True, False, ([1], [])), (False, True, ([], [0])), (True, True, ([1], [0])), (None, None, ([], []))],
)
def test_the_frame_is_what_the_file_says(
    tmp_path: Path, adds_bos: bool | None, adds_eos: bool | None, frame: tuple[list[int], list[int]]
) -> None:
    path = small(tmp_path, ggml__add_bos_token=adds_bos, ggml__add_eos_token=adds_eos)
    tokenizer = load_tokenizer(path)
    bare = tokenizer.encode(HELLO, add_special_tokens=False)
    assert tokenizer.encode(HELLO) == frame[0] + bare + frame[1]
    assert tokenizer.bos_token_id == 1


def test_llama_3_adds_bos_where_the_file_does_not_say(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path, pre="llama-bpe", ggml__add_bos_token=None))
    assert tokenizer.encode("a")[0] == 1


def test_a_text_that_begins_with_bos_gets_no_second_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path, ggml__add_bos_token=True))
    a = tokenizer.encode("a", add_special_tokens=False)
    assert tokenizer.encode("a") == tokenizer.encode("<|im_start|>a") == [1, *a]
    assert tokenizer.encode("") == tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.encode("a<|im_start|>") == [1, *a, 1]


def test_without_a_frame_the_bos_that_a_text_spells_out_twice_stays_twice(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path))
    assert tokenizer.encode("<|im_start|><|im_start|>") == [1, 1]


def test_every_end_the_file_names_ends_an_answer_and_so_does_the_end_of_the_chat_turn(tmp_path: Path) -> None:
    path = small(tmp_path, ggml__eos_token_id=0, ggml__eot_token_id=4, ggml__eom_token_id=5)
    assert load_tokenizer(path).eos_token_ids == {0, 4, 5, 2}
    path = small(tmp_path, chat_template=None, ggml__eos_token_id=None)
    assert load_tokenizer(path).eos_token_ids == WELL_KNOWN_ENDS


@pytest.mark.parametrize(
    "text", ["<end_of_turn>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"]
)
@pytest.mark.parametrize(("kind", "ends"), [(1, False), (3, True), (4, True), (5, False)])
def test_a_well_known_end_of_turn_ends_an_answer_though_the_file_names_another(
    text: str, kind: int, ends: bool, tmp_path: Path
) -> None:
    """kind: of token, in the file: 3 is a control token, 4 user-defined; ordinary and unused ones end nothing."""
    tokens = [token for token, _ in sorted(trained_byte_level().get_vocab().items(), key=lambda item: item[1])]
    tokens[700] = text
    types = [3] * 3 + [1] * 697 + [kind, 4, 4]
    path = small(tmp_path, chat_template=None, ggml__tokens=tokens, ggml__token_type=types, ggml__eos_token_id=9)
    assert load_tokenizer(path).eos_token_ids == WELL_KNOWN_ENDS | {9} | ({700} if ends else set())
    path = small(tmp_path, chat_template=None, ggml__tokens=tokens, ggml__token_type=None, ggml__eos_token_id=9)
    assert load_tokenizer(path).eos_token_ids == {9}, "nothing says which tokens are text"


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{% for m in messages %}{{ m.content }} <file_sep>{% endfor %}", {4}),
        ("{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ eos_token }}\n{% endfor %}", {3}),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}", set()),
        ("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", set()),
        ("{{ raise_exception('no') }}", set()),
        ("{% for %}", set()),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ 1 / 0 }}{% endif %}{{ m.content }}<tool>{% endfor %}",
            {700},
        ),
    ],
)
def test_the_end_of_the_turn_is_what_the_template_puts_after_an_answer(
    tmp_path: Path, template: str, end: set[int]
) -> None:
    path = small(tmp_path, chat_template=template, ggml__eos_token_id=3)
    assert load_tokenizer(path).eos_token_ids == end | {3} | WELL_KNOWN_ENDS


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a vocabulary of another kind": (
        {"ggml__model": "bert"},
        r"tokenizer\.ggml\.model: expected 'gpt2' .* or 'llama' \(SentencePiece's BPE\), found 'bert'",
    ),
    "a SentencePiece vocabulary without scores": (
        {"ggml__model": "llama"},
        r"tokenizer\.ggml\.scores: expected a value of type ndarray, found no such key",
    ),
    "no model": ({"ggml__model": None}, r"tokenizer\.ggml\.model: expected a value of type str, found no such key"),
    "an unknown way to cut text": ({"pre": "vox"}, "pre: expected one of default, gpt-2, .*tekken, found 'vox'"),
    "no tokens": ({"ggml__tokens": None}, r"tokenizer\.ggml\.tokens: expected"),
    "tokens that are numbers": ({"ggml__tokens": [1, 2]}, r"tokenizer\.ggml\.tokens: expected a value of type list"),
    "a token twice": ({"ggml__tokens": ["a", "b", "a"], "ggml__merges": ["a b"]}, "every token once, found 'a' twice"),
    "a merge of one token": (
        {"ggml__merges": ["ab"]},
        r"merges\[0\]: expected two tokens with a space between, found 'ab'",
    ),
    "a merge of three tokens": ({"ggml__merges": ["a b", "a b c"]}, r"merges\[1\]: .*found 'a b c'"),
    "a merge into no token": ({"ggml__merges": ["! Ġ"]}, "merges: expected pairs of tokens whose union is a token"),
    "types for other tokens": ({"ggml__token_type": [1, 2, 3]}, "token_type: expected 703 integers, .* found 3"),
    "an end beyond the vocabulary": (
        {"ggml__eos_token_id": 703},
        "eos_token_id: expected a token id below 703, found 703",
    ),
    "an end of true": ({"ggml__eos_token_id": True}, "eos_token_id: expected a value of type int, found bool True"),
    "a flag that is a text": (
        {"ggml__add_bos_token": "yes"},
        "add_bos_token: expected a value of type bool, found str 'yes'",
    ),
    "a template that is a number": ({"chat_template": 1}, "chat_template: expected a value of type str, found int 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(tmp_path: Path, case: str) -> None:
    metadata, message = REFUSED[case]
    path = small(tmp_path, **metadata)
    with pytest.raises(ModelFormatError, match=message) as error:
        load_tokenizer(path)
    assert str(path) in str(error.value)


def test_bad_arguments_are_the_callers_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small(tmp_path))
    text: Any
    for text, message in ((7, "found int 7"), (None, "found NoneType"), ("a\ud800", r"lone surrogate, U\+D800, at 1")):
        with pytest.raises(InvalidRequestError, match=f"text: expected a string.*{message}"):
            tokenizer.encode(text)
    ids: Any
    for ids in ([-1], [2**40], ["a"], 7):
        with pytest.raises(InvalidRequestError, match="token_ids: expected whole numbers from 0, found"):
            tokenizer.decode(ids)


def test_a_place_without_a_tokenizer_is_not_found(tmp_path: Path) -> None:
    expected = r"model: the folder .* must hold tokenizer\.json, .*tokenizer\.model, or one \.gguf file; it has none of"
    with pytest.raises(ModelNotFoundError, match=expected):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelNotFoundError, match="^model: nothing is at .*; it must be a .gguf file"):
        load_tokenizer(tmp_path / "absent")


def test_the_one_gguf_file_of_a_folder_is_used(tmp_path: Path) -> None:
    small(tmp_path)
    assert load_tokenizer(tmp_path).vocab_size == 703


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_file_gives_a_tokenizer_or_a_format_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    whole = folder / "whole.gguf"
    if not whole.exists():
        folder.mkdir(exist_ok=True)
        write_gguf(whole, trained_byte_level())
    content = bytearray(whole.read_bytes())
    header = len(content) - 703 * 8 * 4
    for position, byte in data.draw(st.dictionaries(st.integers(0, header), st.integers(0, 255), min_size=1)).items():
        content[position] = byte
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    path = folder / "damaged.gguf"
    path.write_bytes(content[:cut])
    try:
        tokenizer = load_tokenizer(path)
    except ModelFormatError:
        return
    assert tokenizer.vocab_size > 0
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in tokenizer.encode(HELLO))
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in tokenizer.eos_token_ids)
