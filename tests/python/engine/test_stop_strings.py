"""Stop strings and output kinds: what is shown, token by token, against the whole text cut the obvious way."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from engine.plain_answers import answered, check_outputs, cut, first_stop, possible
from tokenizer.kinds import KINDS, kind, law, some_ids

from fastpaged.engine.output_processor import StopStrings
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams
from fastpaged.tokenizer import Tokenizer


def some_stops(random_: random.Random, text: str, alphabet: str) -> list[str]:
    """Mostly from the text, some of these altered at the end or the start."""
    stops = []
    for _ in range(random_.randint(1, 4)):
        start = random_.randint(0, len(text))
        stop = text[start : start + random_.randint(1, 6)]
        if not stop or random_.random() < 0.5:
            stop = stop[random_.randint(0, 1) :] + random_.choice(alphabet)
        stops.append(stop)
    return stops


def pieces(random_: random.Random, text: str) -> list[str]:
    cuts = sorted(random_.randint(0, len(text)) for _ in range(random_.randint(0, len(text) + 2)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


# ---- the search


def test_text_in_pieces_is_shown_up_to_the_first_stop_and_only_what_may_become_one_is_held() -> None:
    random_ = random.Random(1)
    num_found = num_held = 0
    for _ in range(20_000):
        alphabet = random_.choice(["ab", "abc", "aé😀\n", "a"])
        text = "".join(random_.choice(alphabet) for _ in range(random_.randint(0, 24)))
        stops = some_stops(random_, text, alphabet)
        included = random_.random() < 0.3
        parts = pieces(random_, text)
        first = random_.choice([0, 0, random_.randint(0, len(parts))])  # the first piece that may stop
        after = len("".join(parts[:first]))
        search = StopStrings(stops, included)
        shown = so_far = ""
        for position, part in enumerate(parts):
            shown += search.push(part, position >= first)
            so_far += part
            found = first_stop(so_far, stops, after)
            case = (parts[: position + 1], stops, included, first)
            assert search.found == (None if found is None else found[1]), case
            if found is None:
                assert search.held == ("" if included else possible(so_far, stops)), case
                assert shown + search.held == so_far, case
                num_held += search.held != ""
        num_found += search.found is not None
        assert shown + search.finish() == cut(text, stops, included, after), (parts, stops, included, first)
        assert search.held == ""
    assert num_found > 4000
    assert num_held > 4000


@pytest.mark.parametrize(
    ("stops", "found", "shown"),
    [
        (["abcd", "bc"], "bc", "a"),  # complete first, though it begins later
        (["bc", "abc"], "bc", "a"),  # complete together: the one listed first
        (["abc", "bc"], "abc", ""),
        (["abc", "ab"], "ab", ""),
    ],
)
@pytest.mark.parametrize("parts", [["abcd"], ["a", "b", "c", "d"], ["ab", "cd"], ["abc", "d"]])
def test_of_several_stops_the_first_to_be_complete_counts(
    stops: list[str], found: str, shown: str, parts: list[str]
) -> None:
    search = StopStrings(stops)
    assert "".join(search.push(part) for part in parts) + search.finish() == shown
    assert search.found == found


def test_the_work_for_a_character_does_not_grow_with_what_is_held() -> None:
    """Characters of the worst kind: to search or even copy the held text for each would take hours."""
    search = StopStrings(["a" * 1_000_000 + "b", "a" * 999_999 + "c"])
    shown = sum(len(search.push("a")) for _ in range(1_200_000))
    assert shown == 200_000
    assert search.push("b") == ""
    assert search.found is not None


def test_a_copied_search_and_the_one_it_was_copied_from_go_their_own_ways() -> None:
    random_ = random.Random(2)
    num_held = 0
    for _ in range(3000):
        stem, left, right = ("".join(random_.choice("ab") for _ in range(random_.randint(0, 5))) for _ in range(3))
        stops = some_stops(random_, stem + left, "ab")
        included = random_.random() < 0.3
        search = StopStrings(stops, included)
        before = search.push(stem)
        num_held += search.held != ""
        branches = [(search, left), (search.copy(), right)]
        random_.shuffle(branches)
        for branch, rest in branches:
            whole = StopStrings(stops, included)
            assert before + branch.push(rest) == whole.push(stem + rest), (stem, rest, stops)
            assert (branch.found, branch.held, branch.finish()) == (whole.found, whole.held, whole.finish())
    assert num_held > 300


# ---- answers, token by token


def certain_texts(tokenizer: Tokenizer, prompt: list[int], output: Sequence[int]) -> list[str]:
    """The text that is certain after each token. test_text_stream.py holds it against the law."""
    stream = tokenizer.text_stream(prompt)
    texts: list[str] = []
    for token_id in output:
        texts.append((texts[-1] if texts else "") + stream.push(token_id))
    return texts


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_is_the_whole_text_up_to_the_first_stop_however_its_tokens_cut_it(name: str) -> None:
    kind_ = kind(name)
    tokenizer = kind_.tokenizer
    random_ = random.Random(name)
    num_stopped = num_held = 0
    for _ in range(3500):
        prompt, output = some_ids(random_, kind_, 3), some_ids(random_, kind_, 6) or [5]
        whole = law(tokenizer, prompt, output)
        stops = some_stops(random_, whole, "ab é€�")
        certain = certain_texts(tokenizer, prompt, output)
        min_tokens = random_.choice([0, 0, random_.randint(0, len(output))])
        after = len(certain[min_tokens - 1]) if min_tokens else 0
        if min_tokens == len(output):
            after = len(whole)
        params = SamplingParams(
            stop=stops,
            include_stop_str_in_output=random_.random() < 0.3,
            min_tokens=min_tokens,
            max_tokens=len(output),
            logprobs=0,
            output_kind=random_.choice(list(RequestOutputKind)),
        )
        ends = random_.choice(["LENGTH", "ABORT"])
        outputs, scheduler = answered(tokenizer, prompt, output, params, ends=ends)
        case = (prompt, output, params, ends)
        completed = [first_stop(text, stops, after) is not None for text in certain]
        num_tokens = completed.index(True) + 1 if any(completed) else len(output)
        found = first_stop(whole, stops, after)
        reason = "abort" if ends == "ABORT" and not any(completed) else "length" if found is None else "stop"
        expected = cut(whole, stops, params.include_stop_str_in_output, after)
        check_outputs(outputs, params.output_kind, output[:num_tokens], expected, case)
        last = outputs[-1].outputs[0]
        assert last.finish_reason == reason, case
        assert last.stop_reason == (found[1] if found is not None and reason == "stop" else None), case
        assert bool(scheduler.ended) == (num_tokens < len(output) or ends == "ABORT"), case
        num_held += check_held(outputs, params, certain, case)
        num_stopped += reason == "stop"
    assert num_stopped > 800
    assert num_held > 300


def check_held(outputs: list[RequestOutput], params: SamplingParams, certain: list[str], case: object) -> int:
    """That each output but the last shows all that is certain but what may become a stop; how often that is held."""
    num_held = 0
    shown = ""
    for position, output in enumerate(outputs[:-1]):
        text = output.outputs[0].text
        shown = shown + text if params.output_kind is RequestOutputKind.DELTA else text
        assert isinstance(params.stop, tuple)
        held = "" if params.include_stop_str_in_output else possible(certain[position], params.stop)
        assert shown + held == certain[position], case
        num_held += held != ""
    return num_held
