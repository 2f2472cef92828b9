from __future__ import annotations

import itertools
import random
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer.kinds import KINDS, Kind, kind, law, some_ids, wrapped
from tokenizer.small_tokenizers import byte_fallback, trained_byte_level
from tokenizers import decoders

from fastpaged.errors import InvalidRequestError, ModelFormatError
from fastpaged.tokenizer import Tokenizer
from fastpaged.tokenizer.byte_alphabet import CHARACTER_OF_BYTE
from fastpaged.tokenizer.text_stream import WindowTextStream

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW_DECODERS = {
    "ByteFallback": None,
    "ByteFallback alone": decoders.ByteFallback(),
    "Metaspace": decoders.Metaspace(),
    "Metaspace and ByteFallback": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "WordPiece": decoders.WordPiece(cleanup=True),
    "BPEDecoder": decoders.BPEDecoder(),
}


@cache
def byte_level() -> Tokenizer:
    return wrapped(trained_byte_level())


@cache
def windowed(decoder: str) -> Tokenizer:
    if decoder == "none":
        backend = byte_fallback()
        backend.decoder = None
        return wrapped(backend)
    return wrapped(byte_fallback(WINDOW_DECODERS[decoder]))


def streamed(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], skip: bool) -> list[str]:
    """The deltas, that of finish() last."""
    stream = tokenizer.text_stream(prompt, skip_special_tokens=skip)
    return [stream.push(token_id) for token_id in output] + [stream.finish()]


@cache
def id_of_byte() -> list[int]:
    """The single-byte tokens of the small byte-level tokenizer."""
    vocabulary = trained_byte_level().get_vocab()
    return [vocabulary[character] for character in CHARACTER_OF_BYTE]


BYTES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(["é", "€", "😀", "\ufffd", "a", " ", "👩\u200d👧", "\U0010ffff"]).map(str.encode),
    st.sampled_from([b"\xed\xa0", b"\xed", b"\xa0", b"\xc0", b"\xf4\x90", b"\xe0\x80", b"\xf0\x80"]),
    st.sampled_from(["€", "😀", "\ufffd"]).flatmap(
        lambda text: st.sampled_from([text.encode()[:1], text.encode()[:-1]])
    ),
)
BYTE_LEVEL_IDS = st.lists(
    st.one_of(
        BYTES.map(lambda raw: [id_of_byte()[byte] for byte in raw]),
        st.integers(0, 720).map(lambda token_id: [token_id]),  # some beyond the vocabulary
        st.sampled_from([[0], [2], [701], [702], [703]]),
    ),
    max_size=8,
).map(lambda runs: [token_id for run in runs for token_id in run])


@settings(deadline=None, max_examples=1000)
@given(BYTE_LEVEL_IDS, BYTE_LEVEL_IDS, st.booleans())
def test_a_byte_level_stream_obeys_the_law_after_every_token(prompt: list[int], output: list[int], skip: bool) -> None:
    tokenizer = byte_level()
    *deltas, last = streamed(tokenizer, prompt, output, skip)
    for length in range(len(output) + 1):
        shown = "".join(deltas[:length])
        expected = law(tokenizer, prompt, output[:length], skip=skip)
        held = expected.removeprefix(shown) if expected.startswith(shown) else "?"
        assert held in ("", "\ufffd", "\ufffd\ufffd"), "nothing but an incomplete character or half a surrogate is held"
    assert "".join(deltas) + last == law(tokenizer, prompt, output, skip=skip)


def test_the_law_holds_for_every_short_run_of_awkward_bytes_cut_anywhere() -> None:
    awkward = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5]
    tokenizer = byte_level()
    for length in range(4):
        for run in itertools.product(awkward, repeat=length):
            ids = [id_of_byte()[byte] for byte in run]
            for cut in range(length + 1):
                deltas = streamed(tokenizer, ids[:cut], ids[cut:], skip=True)
                assert "".join(deltas) == law(tokenizer, ids[:cut], ids[cut:], skip=True), (bytes(run), cut)


WINDOW_IDS = st.lists(
    st.one_of(
        BYTES.map(lambda raw: [3 + byte for byte in raw]),
        st.sampled_from([[259], [259], [260], [261], [267]]),  # ▁, ▁▁, �
        st.integers(0, 274).map(lambda token_id: [token_id]),
    ),
    max_size=8,
).map(lambda runs: [token_id for run in runs for token_id in run])


@pytest.mark.parametrize("decoder", [*WINDOW_DECODERS, "none"])
@settings(deadline=None, max_examples=300)
@given(prompt=WINDOW_IDS, output=WINDOW_IDS, skip=st.booleans())
@example(prompt=[3 + 0xE2, 3 + 0x82], output=[3 + 0xAC, 262], skip=True)  # € across the border
@example(prompt=[259], output=[261], skip=True)
@example(prompt=[1], output=[259, 2, 259, 259, 261], skip=True)
def test_a_windowed_stream_obeys_the_law(decoder: str, prompt: list[int], output: list[int], skip: bool) -> None:
    tokenizer = windowed(decoder)
    deltas = streamed(tokenizer, prompt, output, skip)
    assert "".join(deltas) == law(tokenizer, prompt, output, skip=skip)


@settings(deadline=None, max_examples=300)
@given(WINDOW_IDS, WINDOW_IDS)
def test_a_windowed_stream_holds_back_nothing_but_a_run_of_byte_tokens(prompt: list[int], output: list[int]) -> None:
    tokenizer = windowed("ByteFallback")
    deltas = streamed(tokenizer, prompt, output, skip=False)
    for length in range(1, len(output) + 1):
        if not 3 <= output[length - 1] < 259 and output[length - 1] <= 271:
            assert "".join(deltas[:length]) == law(tokenizer, prompt, output[:length], skip=False)


def test_a_character_that_the_prompt_begins_and_the_output_ends_belongs_to_the_output() -> None:
    e2, x82, xac, a = (id_of_byte()[byte] for byte in (0xE2, 0x82, 0xAC, ord("a")))
    tokenizer = byte_level()
    assert tokenizer.decode([a, e2, x82]) == "a\ufffd"
    assert streamed(tokenizer, [a, e2, x82], [xac, a], skip=True) == ["€", "a", ""]
    assert streamed(tokenizer, [a, e2], [x82, xac], skip=True) == ["", "€", ""]


def test_a_character_that_the_output_does_not_complete_stays_the_prompts() -> None:
    e2, x82, a = (id_of_byte()[byte] for byte in (0xE2, 0x82, ord("a")))
    tokenizer = byte_level()
    assert streamed(tokenizer, [e2], [a], skip=True) == ["a", ""], "text(prompt) has the U+FFFD already"
    assert streamed(tokenizer, [e2], [x82], skip=True) == ["", ""]
    assert streamed(tokenizer, [e2], [], skip=True) == [""]


def test_an_incomplete_character_at_the_end_comes_out_of_finish_once() -> None:
    stream = byte_level().text_stream([])
    assert stream.push(id_of_byte()[0xF0]) + stream.push(id_of_byte()[0x9F]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_special_tokens_are_shown_only_on_request() -> None:
    tokenizer = byte_level()
    a = id_of_byte()[ord("a")]
    assert "".join(streamed(tokenizer, [1], [a, 2, a], skip=True)) == "aa"
    assert "".join(streamed(tokenizer, [1], [a, 2, a], skip=False)) == "a<|im_end|>a"


def test_the_work_for_a_token_does_not_grow_with_the_text() -> None:
    tokenizer = windowed("ByteFallback")
    decoded: list[int] = []

    def decode(token_ids: list[int]) -> str:
        decoded.append(len(token_ids))
        return tokenizer.decode(token_ids)

    prompt = [261, 262] * 5000
    stream = WindowTextStream(prompt, decode, is_visible=lambda _: True, is_byte=lambda token_id: 3 <= token_id < 259)
    for token_id in [259, 261, 3 + 0xC3, 3 + 0xA9, 260, 262] * 500:
        stream.push(token_id)
    assert max(decoded) <= 5
    assert len(decoded) <= 3 * 3000


def test_a_bad_token_id_is_the_callers_error() -> None:
    for tokenizer in (byte_level(), windowed("ByteFallback")):
        stream = tokenizer.text_stream([])
        for bad in (-1, 2**40):
            with pytest.raises(InvalidRequestError, match=f"token_id: expected a whole number from 0, found {bad}"):
                stream.push(bad)


def test_a_decoder_that_no_stream_can_follow_is_refused() -> None:
    backend = byte_fallback(decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]))
    with pytest.raises(
        ModelFormatError, match=r"test: decoder: expected ByteLevel, or some of .*, found ByteLevel, Fuse"
    ):
        wrapped(backend)


# ---- every kind


def with_special_tokens(random_: random.Random, kind_: Kind, most: int) -> list[int]:
    ids = some_ids(random_, kind_, most)
    for _ in range(random_.choice([0, 0, 1, 3])):
        ids.insert(random_.randint(0, len(ids)), random_.choice(kind_.special_ids))
    return ids


def may_change(kind_: Kind, ids: Sequence[int], skip: bool) -> bool:
    """Whether the text's end may still change: it ends within a character, or in a run of byte tokens."""
    shown = [token_id for token_id in ids if not (skip and token_id in kind_.special_ids)]
    if kind_.is_byte_level:
        return kind_.tokenizer.decode(ids, skip_special_tokens=skip).endswith("\ufffd")
    return bool(shown) and shown[-1] in {kind_.id_of_byte(byte) for byte in range(256)}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_shows_after_every_token_all_the_text_that_cannot_change(name: str) -> None:
    kind_, random_ = kind(name), random.Random(name)
    num_held = 0
    for _ in range(600):
        prompt, output = with_special_tokens(random_, kind_, 3), with_special_tokens(random_, kind_, 6)
        skip = random_.random() < 0.5
        *deltas, last = streamed(kind_.tokenizer, prompt, output, skip)
        case = (prompt, output, skip)
        for length in range(1, len(output) + 1):
            shown, expected = "".join(deltas[:length]), law(kind_.tokenizer, prompt, output[:length], skip=skip)
            if may_change(kind_, [*prompt, *output[:length]], skip):
                assert not shown or not deltas[length - 1].endswith("\ufffd") or name == "byte-level", case
                num_held += shown != expected
            else:
                assert shown == expected, case
        assert "".join(deltas) + last == law(kind_.tokenizer, prompt, output, skip=skip), case
    assert num_held > 100


@pytest.mark.parametrize("name", KINDS)
def test_the_space_that_begins_a_word_is_shown_after_a_prompt(name: str) -> None:
    tokenizer = kind(name).tokenizer
    prompt, output = tokenizer.encode("the cat"), tokenizer.encode("the cat and the")
    if output[: len(prompt)] == prompt:
        assert "".join(streamed(tokenizer, prompt, output[len(prompt) :], skip=True)) == " and the"
    assert "".join(streamed(tokenizer, [], tokenizer.encode("the"), skip=True)) == "the"


@pytest.mark.parametrize("name", KINDS)
def test_no_kind_puts_spaces_between_special_tokens(name: str) -> None:
    """Hence SamplingParams.spaces_between_special_tokens changes nothing."""
    kind_ = kind(name)
    ids = [*kind_.special_ids, *kind_.special_ids[:1]]
    together = "".join(kind_.tokenizer.token_text(token_id) for token_id in ids)
    assert kind_.tokenizer.decode(ids, skip_special_tokens=False) == together
    assert "".join(streamed(kind_.tokenizer, [], ids, skip=False)) == together


@pytest.mark.parametrize("name", KINDS)
def test_a_copied_stream_and_the_one_it_was_copied_from_go_their_own_ways(name: str) -> None:
    kind_ = kind(name)
    random_ = random.Random(name)
    num_held = 0
    for _ in range(400):
        prompt, stem, left, right = (some_ids(random_, kind_, 3) for _ in range(4))
        stream = kind_.tokenizer.text_stream(prompt)
        before = [stream.push(token_id) for token_id in stem]
        num_held += "".join(before) != law(kind_.tokenizer, prompt, stem)
        branches = [(stream, left), (stream.copy(), right)]
        random_.shuffle(branches)  # whoever goes first leaves the other alone
        for branch, output in branches:
            texts = [*before, *(branch.push(token_id) for token_id in output), branch.finish()]
            assert texts == streamed(kind_.tokenizer, prompt, [*stem, *output], skip=True), (prompt, stem, output)
    assert num_held > 20, "some were copied within a character"
