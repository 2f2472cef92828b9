"""Server-sent events come out whole, however they were cut, ended and commented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastpaged.client.sse import SseReader

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
EVENTS = st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=6)  # of each event its lines
NOISE = st.one_of(
    TEXT.map(lambda text: ":" + text),
    TEXT.map(lambda text: "event: " + text),
    st.sampled_from(["id: 7", "retry: 10", "retry", "dat: a", "datax: b", " data: c"]),
)


def read(stream: bytes, cuts: list[int]) -> list[str]:
    reader, events, at = SseReader(), [], 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        events += reader.feed(stream[at:cut])
        at = cut
    return events


@given(EVENTS, st.data())
def test_events_come_out_as_they_were_sent_however_the_bytes_are_cut(
    events: list[list[str]], data: st.DataObject
) -> None:
    lines = []
    for event in events:
        lines += data.draw(st.lists(NOISE, max_size=2))
        lines += ["data: " + line for line in event]
        lines += data.draw(st.lists(NOISE, max_size=1))
        lines += [""] * data.draw(st.integers(1, 2))
    ends = data.draw(st.lists(LINE_ENDS, min_size=len(lines), max_size=len(lines)))
    # A bare CR and the LF of an empty line behind it would be one end of a line.
    for index in range(1, len(lines)):
        if not lines[index] and ends[index - 1] == "\r" and ends[index] == "\n":
            ends[index] = "\r"
    stream = "".join(map("".join, zip(lines, ends, strict=True))).encode()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    expected = ["\n".join(event) for event in events]
    assert read(stream, cuts) == read(stream, list(range(len(stream)))) == expected


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=10))
def test_any_bytes_read_the_same_in_one_piece_and_in_many(stream: bytes, cuts: list[int]) -> None:
    assert read(stream, cuts) == read(stream, []) == read(stream, list(range(len(stream))))


@given(st.lists(st.sampled_from([b"data:", b"data", b" ", b"\r", b"\n", b":", b"x", b"\xc3\xa9"]), max_size=30))
def test_what_nearly_is_an_event_reads_the_same_byte_by_byte(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    assert read(stream, list(range(len(stream)))) == read(stream, [])


def test_one_space_behind_the_colon_is_no_data_and_a_second_is() -> None:
    assert SseReader().feed(b"data:a\n\ndata: b\n\ndata:  c\n\ndata\n\ndata:\n\n") == ["a", "b", " c", "", ""]


def test_an_event_that_has_not_ended_is_none() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\ndata: b") == []
    assert reader.feed(b"\n") == []
    assert reader.feed(b"\n") == ["a\nb"]


def test_a_character_that_is_cut_in_two_is_whole_again() -> None:
    reader = SseReader()
    assert reader.feed("data: é".encode()[:-1]) == []
    assert reader.feed("é\n\n".encode()[1:]) == ["é"]


def test_the_two_bytes_that_end_a_line_may_come_apart() -> None:
    reader = SseReader()
    events = [reader.feed(piece) for piece in (b"data: a\r", b"", b"\ndata: b\r", b"\n\r", b"\ndata: c\r", b"\r")]
    assert events == [[], [], [], ["a\nb"], [], ["c"]]


def test_a_byte_order_mark_is_passed_over_at_the_start_alone() -> None:
    stream = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"
    assert read(stream, []) == read(stream, [1, 2, 3]) == ["a"]


def test_bytes_that_are_no_utf_8_do_not_end_the_stream() -> None:
    assert SseReader().feed(b"data: a\xffb\n\ndata: c\n\n") == ["a\ufffdb", "c"]
