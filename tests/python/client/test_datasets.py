"""Requests from files of prompts, from traces, and at random."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fastpaged.client.bench_request import BenchRequest, fitting
from fastpaged.client.prompt_file import read_prompts
from fastpaged.client.random_prompts import BLOCK_TOKENS, RandomPrompts, random_requests
from fastpaged.client.trace_file import read_trace
from fastpaged.errors import InvalidRequestError

IDS = RandomPrompts(0, 320, as_text=False)
WORDS = RandomPrompts(0, 320, as_text=True)
TRACE = "arrival_s,prompt_tokens,output_tokens\n0.5,3,4\n1.5,5,6\n1.5,700,8\n"


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(tmp_path: Path, text: str, output_len: int | None = None) -> list[BenchRequest]:
    return read_prompts(written(tmp_path / "prompts", text), output_len, 128)


# ---- files of prompts


def test_prompts_are_texts_or_ids_with_lengths_by_any_of_their_names(tmp_path: Path) -> None:
    entries: list[Any] = [
        {"prompt": [1, 2, 3], "out": 9},
        {"prompt": "four letters?", "output_len": 8},
        {"prompt": "x", "output_tokens": 7, "more": "is passed over"},
        {"prompt": "x", "max_tokens": 6},
        {"prompt": "x"},
        "just text",
    ]
    expected = [
        BenchRequest([1, 2, 3], 3, 9),
        BenchRequest("four letters?", 4, 8),
        BenchRequest("x", 1, 7),
        BenchRequest("x", 1, 6),
        BenchRequest("x", 1, 128),
        BenchRequest("just text", 3, 128),
    ]
    assert read(tmp_path, json.dumps(entries)) == expected
    assert read(tmp_path, "\n\n".join(map(json.dumps, entries)) + "\n") == expected


def test_a_conversation_is_its_first_question_and_as_long_as_its_answer(tmp_path: Path) -> None:
    def turns(*texts: str) -> dict[str, Any]:
        return {"id": "a", "conversations": [{"from": "human", "value": text} for text in texts]}

    entries = [turns("question", "an answer of 24 letters.", "more"), turns("alone"), turns(), turns("", "answer")]
    assert read(tmp_path, json.dumps(entries)) == [BenchRequest("question", 2, 6)]


def test_one_length_for_all_goes_before_those_of_the_file(tmp_path: Path) -> None:
    text = json.dumps([{"prompt": "x", "out": 9}, {"conversations": [{"value": "x"}, {"value": "y"}]}, "x"])
    assert [request.num_output_tokens for request in read(tmp_path, text, 5)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no request"),
        ("[]", "holds no request"),
        ('[{"conversations": []}]', "holds no request"),
        ("[1", "must be JSON"),
        ('"a"\nno\n', "line 2"),
        ('{"prompt": "a"}\n{"text": "b"}', "request 1 must be a text"),
        ("[7]", "request 0 must be a text"),
        ('[""]', "request 0 must be a text"),
        ('[{"prompt": ""}]', "request 0 must be a text"),
        ('[{"prompt": []}]', "request 0 must be a text"),
        ('[{"prompt": [1, true]}]', "request 0 must be a text"),
        ('[{"prompt": "a", "out": 0}]', "request 0: out must be an integer of at least 1, got 0"),
        ('[{"prompt": "a", "max_tokens": "5"}]', "request 0: max_tokens must be an integer of at least 1, got '5'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"^--dataset: .*prompts") as error:
        read(tmp_path, text)
    assert words in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="absent cannot be read: No such file"):
        read_prompts(tmp_path / "absent", None, 1)
    with pytest.raises(InvalidRequestError, match="absent cannot be read: No such file"):
        read_trace(tmp_path / "absent", IDS, None, None)


def test_requests_that_are_too_long_are_left_out() -> None:
    requests = [BenchRequest([1], 5, 5), BenchRequest([1], 5, 6)]
    assert fitting(requests, 10) == requests[:1]
    assert fitting(requests, None) == requests


# ---- traces


@pytest.mark.parametrize("compress", [False, True])
def test_a_trace_has_times_and_lengths_and_prompts_of_just_that_length(compress: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "trace", gzip.compress(TRACE.encode()) if compress else TRACE)
    requests = read_trace(path, IDS, None, None)
    assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in requests] == [
        (0.5, 3, 4), (1.5, 5, 6), (1.5, 700, 8),
    ]  # fmt: skip
    assert [len(request.prompt) for request in requests] == [3, 5, 700]


def test_of_a_trace_the_first_rows_that_fit_are_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "trace", TRACE)
    assert [r.num_prompt_tokens for r in read_trace(path, IDS, None, 2)] == [3, 5]
    assert [r.num_prompt_tokens for r in read_trace(path, IDS, 11, 3)] == [3, 5]
    assert [r.num_prompt_tokens for r in read_trace(path, IDS, 10, 3)] == [3]


@pytest.mark.parametrize("prompts", [IDS, WORDS])
def test_prompts_of_a_trace_share_the_blocks_whose_ids_they_share(prompts: RandomPrompts, tmp_path: Path) -> None:
    rows = ["0,1100,1,7 8 9", "0,1100,1,7 8 10", "0,600,1,7", "0,600,1,7", "0,100,1,7", "0,600,1,"]
    text = "arrival_s,prompt_tokens,output_tokens,prefix_hash_ids\n" + "\n".join(rows)
    requests = read_trace(written(tmp_path / "trace", text), prompts, None, None)
    tokens = [r.prompt.split(" ") if isinstance(r.prompt, str) else r.prompt for r in requests]
    assert [len(prompt) for prompt in tokens] == [1100, 1100, 600, 600, 100, 600]

    def shared(a: int, b: int) -> int:
        return next((i for i, (x, y) in enumerate(zip(tokens[a], tokens[b], strict=False)) if x != y), len(tokens[b]))

    assert 2 * BLOCK_TOKENS <= shared(0, 1) < 2 * BLOCK_TOKENS + 9  # a token or two may be alike by chance
    assert BLOCK_TOKENS <= shared(0, 2) < BLOCK_TOKENS + 9
    assert BLOCK_TOKENS <= shared(2, 3) < BLOCK_TOKENS + 9
    assert shared(0, 4) == 100
    assert shared(0, 5) < 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff\xfe", "must be CSV"),
        (b"\x1f\x8bbroken", "must be CSV"),
        ("", "must have the columns"),
        ("arrival_s,prompt_tokens\n0,1\n", "lacks ['output_tokens']"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\nx,1,1\n", "line 3 must have a time"),
        ("arrival_s,prompt_tokens,output_tokens\n0,0,1\n", "line 2 must have a time"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", "line 2 must have a time"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1\n", "line 2 must have a time"),
        ("arrival_s,prompt_tokens,output_tokens\n2,1,1\n1,1,1\n", "line 3: arrival_s must not go back, got 1.0"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named_with_its_place(text: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"^--dataset: .*trace") as error:
        read_trace(written(tmp_path / "trace", text), IDS, None, None)
    assert words in str(error.value)


# ---- at random


def test_random_prompts_are_ids_away_from_the_special_ones_or_words() -> None:
    ids, words = IDS.prompt("a", 5000), WORDS.prompt("a", 50)
    assert isinstance(ids, list)
    assert (min(ids), max(ids)) == (20, 299)
    assert isinstance(words, str)
    assert len(words.split(" ")) == 50
    assert ids == IDS.prompt("a", 5000) != IDS.prompt("b", 5000)
    assert ids != RandomPrompts(1, 320, as_text=False).prompt("a", 5000)


def test_random_lengths_are_within_their_range_and_reach_its_ends() -> None:
    requests = random_requests(IDS, 0, 2000, 10, 4, 0.5)
    assert {r.num_prompt_tokens for r in requests} == set(range(5, 16))
    assert {r.num_output_tokens for r in requests} == set(range(2, 7))
    assert all(len(r.prompt) == r.num_prompt_tokens for r in requests)
    assert len({str(r.prompt) for r in requests}) == 2000
    assert {r.num_prompt_tokens for r in random_requests(IDS, 0, 9, 10, 4, 0.0)} == {10}
    assert random_requests(IDS, 0, 5, 10, 4, 0.5) == requests[:5] != random_requests(IDS, 1, 5, 10, 4, 0.5)


@pytest.mark.parametrize(
    ("lengths", "words"), [((0, 1, 0.0), "--random-input-len"), ((1, 0, 0.0), "--random-output-len"),
                           ((1, 1, 1.0), "--range-ratio"), ((1, 1, -0.1), "--range-ratio")]
)  # fmt: skip
def test_lengths_that_cannot_be_are_refused(lengths: tuple[int, int, float], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        random_requests(IDS, 0, 1, *lengths)
    with pytest.raises(InvalidRequestError, match="--random-vocab-size"):
        RandomPrompts(0, 15, as_text=False)
