"""ReplayedPaths: tokens that part where the recorded ones did. The other side of engine/known_paths.py."""

from __future__ import annotations

from fastpaged.engine.known_paths import NEXT

STOP_TOKEN = 2**31 - 1  # no strand has this number


class ReplayedPaths:
    """A token is NEXT, or the number of the strand that it begins."""

    def __init__(self) -> None:
        self._origins: dict[int, tuple[int, int]] = {0: (0, 0)}  # of each strand: parent, offset

    def begin(self, number: int, parent: int, offset: int) -> None:
        """A strand that branches off another one."""
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
        parts = []
        while strand:
            parts.append([strand] + [NEXT] * (offset - 1) if offset else [])
            strand, offset = self._origins[strand]
        parts.append([NEXT] * offset)
        return [token for part in reversed(parts) for token in part]
