"""KnownPaths: which token sequences begin alike, so that a recording can say so and hold no token.

Texts are kept as strands. A strand is a run of tokens that branches off another one at some place in it; sequences that
agree so far are at one Position, (strand, number of its tokens). Where texts part, the newcomer gets a strand of its
own, with a number never given before, and whoever comes to the end of a strand first goes on in it. So a token is
either the next one of its strand, NEXT, or the number of the strand that it begins: enough to tell any two texts that
part from each other, and where, and nothing else about them.

What need not be recognised any more is forgotten: keep().
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEXT = 0


class Strand:
    """tokens: its own. It branches off `parent` behind that one's first `offset` tokens. Children: by the place in it
    where they branch off, and their first token. A strand that was cut goes on in others alone."""

    __slots__ = ("children", "is_cut", "number", "offset", "parent", "tokens")

    def __init__(self, number: int, parent: Strand | None, offset: int) -> None:
        self.number = number
        self.parent = parent
        self.offset = offset
        self.tokens = array("i")
        self.children: dict[tuple[int, int], Strand] = {}
        self.is_cut = False


Position = tuple[Strand, int]


@dataclass(frozen=True)
class Walk:
    """Where a text led: along what is known to (`strand`, `offset`), and by num_new tokens beyond it, in a strand
    `new_strand` (0: in the same one)."""

    end: Position
    strand: int
    offset: int
    num_new: int
    new_strand: int


class KnownPaths:
    """Invariants (check_invariants): a strand but the first has tokens, and is its parent's child by the first of them
    and the place; num_tokens counts all."""

    def __init__(self) -> None:
        self.first = Strand(0, None, 0)
        self.num_tokens = 0
        self._last_number = 0

    @property
    def root(self) -> Position:
        """Of the empty text."""
        return self.first, 0

    def walk(self, token_ids: Sequence[int]) -> Walk:
        """Along a whole text, which is known from then on."""
        tokens = array("i", token_ids)
        (strand, offset), done = self._follow(self.root, tokens)
        rest = tokens[done:]
        if not rest:
            return Walk((strand, offset), strand.number, offset, 0, 0)
        goes_on = offset == len(strand.tokens) and not strand.is_cut
        longer = strand if goes_on else self._branch(strand, offset, rest[0])
        longer.tokens.extend(rest)
        self.num_tokens += len(rest)
        new_strand = 0 if longer is strand else longer.number
        return Walk((longer, len(longer.tokens)), strand.number, offset, len(rest), new_strand)

    def step(self, position: Position, token_id: int) -> tuple[Position, int, bool]:
        """By one token: where that is, the token as it is recorded, and whether its strand is new."""
        strand, offset = position
        if offset < len(strand.tokens):
            if strand.tokens[offset] == token_id:
                return (strand, offset + 1), NEXT, False
        elif not strand.is_cut:
            strand.tokens.append(token_id)
            self.num_tokens += 1
            return (strand, offset + 1), NEXT, False
        child = strand.children.get((offset, token_id))
        if child is not None:
            return (child, 1), child.number, False
        child = self._branch(strand, offset, token_id)
        child.tokens.append(token_id)
        self.num_tokens += 1
        return (child, 1), child.number, True

    def find(self, position: Position, token_ids: Sequence[int]) -> Position | None:
        """Where these tokens lead from there; None if that is not known."""
        tokens = array("i", token_ids)
        end, done = self._follow(position, tokens)
        return end if done == len(tokens) else None

    def keep(self, positions: Iterable[Position]) -> None:
        """Forgets all but the texts that lead to these."""
        kept: dict[Strand, int] = {self.first: 0}
        for strand, offset in positions:
            at: Strand | None = strand
            while at is not None:
                was_kept = at in kept
                kept[at] = max(kept.get(at, 0), offset)
                if was_kept:
                    break
                offset, at = at.offset, at.parent
        self.num_tokens = 0
        for strand, length in kept.items():
            if length < len(strand.tokens):
                del strand.tokens[length:]
                strand.is_cut = True
            strand.children = {key: child for key, child in strand.children.items() if child in kept}
            self.num_tokens += len(strand.tokens)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        strands = [self.first]
        for strand in strands:
            for (offset, token_id), child in strand.children.items():
                assert child.parent is strand and child.offset == offset <= len(strand.tokens)
                assert child.tokens[0] == token_id
                assert offset == len(strand.tokens) or strand.tokens[offset] != token_id
                assert offset < len(strand.tokens) or strand.is_cut
                strands.append(child)
        assert self.num_tokens == sum(len(strand.tokens) for strand in strands)
        assert len({strand.number for strand in strands}) == len(strands)

    def _branch(self, strand: Strand, offset: int, token_id: int) -> Strand:
        self._last_number += 1
        child = Strand(self._last_number, strand, offset)
        strand.children[offset, token_id] = child
        return child

    def _follow(self, position: Position, tokens: array[int]) -> tuple[Position, int]:
        """As far as it is known: to where, and by how many tokens."""
        strand, offset = position
        done = 0
        while done < len(tokens):
            same = _num_equal(strand.tokens, offset, tokens, done)
            done += same
            offset += same
            if done == len(tokens):
                break
            child = strand.children.get((offset, tokens[done]))
            if child is None:
                break
            strand, offset = child, 0
        return (strand, offset), done


def _num_equal(a: array[int], a_begin: int, b: array[int], b_begin: int) -> int:
    """How many tokens from there on are the same."""
    low, high = 0, min(len(a) - a_begin, len(b) - b_begin)
    if a[a_begin : a_begin + high] == b[b_begin : b_begin + high]:
        return high
    while high - low > 1:  # the first `low` are the same, the first `high` are not
        middle = (low + high) // 2
        if a[a_begin + low : a_begin + middle] == b[b_begin + low : b_begin + middle]:
            low = middle
        else:
            high = middle
    return low
