"""ReplayedPaths: tokens that part where the recorded ones did. The other side of engine/known_paths.py."""

from __future__ import annotations

from fastpaged.engine.known_paths import NEXT

STOP_TOKEN = 2**31 - 1  # no strand has this number


class ReplayedPaths:
    """A token is NEXT, or the number of the strand that it begins. ValueError: for what no recorder writes."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: of the longest text there can be."""
        self._max_tokens = max_tokens
        self._origins: dict[int, tuple[int, int]] = {0: (0, 0)}  # of each strand: parent, offset

    def begin(self, number: int, parent: int, offset: int) -> None:
        """A strand that branches off another one."""
        if parent not in self._origins or number in self._origins:
            raise ValueError(f"strand {number} cannot begin behind strand {parent}")
        self._origins[number] = (parent, offset)

    def prompt(self, walk: list[int]) -> list[int]:
        """The tokens of a text as it was recorded: [strand, offset, num_new, new_strand]."""
        strand, offset, num_new, new_strand = walk
        if new_strand:
            self.begin(new_strand, strand, offset)
            return self.tokens(new_strand, num_new)
        return self.tokens(strand, offset + num_new)

    def tokens(self, strand: int, offset: int) -> list[int]:
        """Of the text that leads behind a strand's first `offset` tokens."""
        pieces = [(strand, offset)]
        while pieces[-1][0]:
            pieces.append(self._origins[pieces[-1][0]])
        num_tokens = sum(length for _, length in pieces)
        if num_tokens > self._max_tokens or any(length < 0 for _, length in pieces):
            raise ValueError(f"a text of {num_tokens} tokens, of which there can be {self._max_tokens}")
        tokens: list[int] = []
        for begun, length in reversed(pieces):
            tokens += [begun or NEXT] * min(length, 1) + [NEXT] * (length - 1)
        return tokens
