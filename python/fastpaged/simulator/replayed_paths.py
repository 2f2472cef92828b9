"""ReplayedPaths: tokens that part where the recorded ones did. The other side of engine/known_paths.py."""

from __future__ import annotations

from fastpaged.engine.known_paths import NEXT

STOP_TOKEN = 2**31 - 1  # no strand has this number


class ReplayedPaths:
    """A token is NEXT, or the number of the strand that it begins."""

    def __init__(self, max_tokens: int) -> None:
        """max_tokens: no text is longer."""
        self._max_tokens = max_tokens
        self._origins: dict[int, tuple[int, int]] = {0: (0, 0)}  # of each strand: parent, offset
        self._lengths: dict[int, int] = {0: 0}  # of the texts that lead to where strands begin

    def begin(self, number: int, parent: int, offset: int) -> None:
        """A strand that branches off another one. Raises ValueError for one that cannot be."""
        if not 0 < number < STOP_TOKEN or number in self._origins:
            raise ValueError(f"strand {number} is no new one")
        self._lengths[number] = self._length(parent, offset)
        self._origins[number] = (parent, offset)

    def prompt(self, walk: list[int]) -> list[int]:
        """The tokens of a text as it was recorded: [strand, offset, num_new, new_strand]. Raises as begin() does,
        before it makes a text that is too long."""
        strand, offset, num_new, new_strand = walk
        self._length(strand, self._length(0, offset) + self._length(0, num_new))
        if new_strand:
            self.begin(new_strand, strand, offset)
            return self.tokens(new_strand, num_new)
        return self.tokens(strand, offset + num_new)

    def _length(self, strand: int, offset: int) -> int:
        """Of the text that leads behind a strand's first `offset` tokens."""
        if strand not in self._lengths:
            raise ValueError(f"nothing is known of strand {strand}")
        length = self._lengths[strand] + offset
        if offset < 0 or length > self._max_tokens:
            raise ValueError(f"a text has from 0 to {self._max_tokens} tokens, got {length}")
        return length

    def tokens(self, strand: int, offset: int) -> list[int]:
        """Of the text that leads behind a strand's first `offset` tokens."""
        parts = []
        while strand:
            parts.append([strand] + [NEXT] * (offset - 1) if offset else [])
            strand, offset = self._origins[strand]
        parts.append([NEXT] * offset)
        return [token for part in reversed(parts) for token in part]
