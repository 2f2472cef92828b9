"""What a recording says of tokens: where texts part, exactly, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.engine.known_paths import KnownPaths, Position
from fastpaged.simulator.replayed_paths import ReplayedPaths

TOKENS = st.lists(st.integers(1, 3), max_size=7)


class Recorded:
    """Texts as they are recorded and read back."""

    def __init__(self) -> None:
        self.paths = KnownPaths()
        self.replayed = ReplayedPaths(10**6)
        self.texts: list[tuple[list[int], list[int], Position]] = []  # real, replayed, where it led

    def add(self, prompt: list[int], answer: list[int]) -> None:
        walk = self.paths.walk(prompt)
        tokens = self.replayed.prompt([walk.strand, walk.offset, walk.num_new, walk.new_strand])
        position = walk.end
        for token in answer:
            begin = position
            position, code, is_new = self.paths.step(begin, token)
            if is_new:
                self.replayed.begin(code, begin[0].number, begin[1])
            tokens.append(code)
        self.paths.check_invariants()
        self.texts.append((prompt + answer, tokens, position))


def num_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=10))
def test_replayed_texts_part_where_the_real_ones_do(texts: list[tuple[list[int], list[int]]]) -> None:
    recorded = Recorded()
    for prompt, answer in texts:
        recorded.add(prompt, answer)
    for real, replayed, _ in recorded.texts:
        assert len(real) == len(replayed)
        for other_real, other_replayed, _ in recorded.texts:
            assert num_common(real, other_real) == num_common(replayed, other_replayed)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(TOKENS, TOKENS, st.booleans()), max_size=8),
    st.lists(st.tuples(TOKENS, TOKENS), max_size=8),
)
def test_what_is_kept_is_recognised_and_what_is_forgotten_never_shows_a_prefix_that_is_not_there(
    before: list[tuple[list[int], list[int], bool]], after: list[tuple[list[int], list[int]]]
) -> None:
    recorded = Recorded()
    for prompt, answer, _ in before:
        recorded.add(prompt, answer)
    recorded.paths.keep(text[2] for text, (_, _, kept) in zip(recorded.texts, before, strict=True) if kept)
    recorded.paths.check_invariants()
    kept = [text for text, (_, _, is_kept) in zip(recorded.texts, before, strict=True) if is_kept]
    distinct = {tuple(text[0][:length]) for text in kept for length in range(1, len(text[0]) + 1)}
    assert recorded.paths.num_tokens == len(distinct)
    for prompt, answer in after:
        recorded.add(prompt, answer)
    for real, replayed, _ in recorded.texts[len(before) :]:
        for other_real, other_replayed, _ in kept + recorded.texts[len(before) :]:
            assert num_common(real, other_real) == num_common(replayed, other_replayed)
        for other_real, other_replayed, _ in recorded.texts:
            assert num_common(real, other_real) >= num_common(replayed, other_replayed)


def test_a_text_is_found_from_where_it_is_known() -> None:
    paths = KnownPaths()
    end = paths.walk([5, 6, 7, 8]).end
    half = paths.find(paths.root, [5, 6])
    assert half is not None
    assert paths.find(half, [7, 8]) == end
    assert paths.find(half, [8]) is None
