"""Drawing KV memory: a bar of what its slots are for, and a map of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fastpaged import _core
    from fastpaged.cli.screen import Style


@dataclass(frozen=True)
class Kind:
    """What a slot or a block is, and how it is drawn."""

    name: str
    sign: str
    plain_sign: str  # where there is ASCII alone
    color: str

    def drawn(self, style: Style) -> str:
        """Its sign."""
        return self.sign if style.unicode else self.plain_sign


# Of slots, in the order of the bar.
_TOKENS = Kind("tokens", "█", "#", "green")
_RESERVED = Kind("reserved", "▒", "r", "yellow")
_WASTE = Kind("waste", "x", "x", "red")
_CACHED_FREE = Kind("cached free", "░", ":", "blue")
_FREE = Kind("free", "·", ".", "dim")
_QUARANTINED = Kind("quarantined", "!", "!", "red")

# Of blocks; of those in one cell the commonest is drawn, and of equally common ones the last.
BLOCK_KINDS = (
    _FREE,
    _CACHED_FREE,
    Kind("filling", "▄", "+", "yellow"),
    Kind("full", "█", "#", "green"),
    Kind("shared", "▓", "S", "cyan"),
    Kind("pinned", "P", "P", "magenta"),
    _QUARANTINED,
)


def split_parts(split: _core.SlotSplit) -> list[tuple[Kind, int]]:
    """Every slot once; what is rare only where there is some of it."""
    parts = [
        (_TOKENS, split.token_states),
        (_RESERVED, split.reserved),
        (_WASTE, split.internal_waste),
        (_CACHED_FREE, split.cached_free),
        (_FREE, split.free - split.cached_free),
        (_QUARANTINED, split.quarantined),
    ]
    return [(kind, count) for kind, count in parts if count > 0 or kind is not _QUARANTINED]


def pool_bar(split: _core.SlotSplit, width: int, style: Style) -> str:
    """So many cells, shared out among the parts: each is off by less than one."""
    parts = split_parts(split)
    counts = shared_out([count for _, count in parts], width)
    return "".join(
        style.paint(kind.drawn(style) * count, kind.color) for (kind, _), count in zip(parts, counts, strict=True)
    )


def shared_out(amounts: Sequence[int], num_cells: int) -> list[int]:
    """Cells for each amount, by largest remainder: they sum to num_cells, if any amount is not 0."""
    total = sum(amounts)
    if total == 0:
        return [0] * len(amounts)
    cells = [amount * num_cells // total for amount in amounts]
    by_rest = sorted(range(len(amounts)), key=lambda place: -(amounts[place] * num_cells % total))
    for place in by_rest[: num_cells - sum(cells)]:
        cells[place] += 1
    return cells


def block_kinds(tier: _core.TierUse, block_size: int) -> npt.NDArray[np.intp]:
    """Of each block, its place in BLOCK_KINDS."""
    held = tier.num_holders > 0
    full = tier.num_tokens == block_size
    conditions = [tier.quarantined, tier.pinned, tier.num_holders > 1, held & full, held, tier.cached]
    return np.select(conditions, [6, 5, 4, 3, 2, 1], default=0)


@dataclass(frozen=True)
class BlockMap:
    """lines: from block 0 on, with so many blocks in each cell."""

    lines: tuple[str, ...]
    blocks_per_cell: int


def block_map(kinds: npt.NDArray[np.intp], width: int, max_lines: int, style: Style) -> BlockMap:
    """All blocks, in as few to a cell as fit into so many cells. No lines for no blocks."""
    if len(kinds) == 0 or max_lines < 1:
        return BlockMap((), 1)
    per_cell = -(-len(kinds) // (width * max_lines))
    cells = commonest(kinds, per_cell)
    lines = [_painted(cells[first : first + width], style) for first in range(0, len(cells), width)]
    return BlockMap(tuple(lines), per_cell)


def commonest(kinds: npt.NDArray[np.intp], per_cell: int) -> list[int]:
    """Of each so many blocks; of equally common kinds the last one."""
    num_cells = -(-len(kinds) // per_cell)
    num_kinds = len(BLOCK_KINDS)
    counts = np.bincount(np.arange(len(kinds)) // per_cell * num_kinds + kinds, minlength=num_cells * num_kinds)
    backwards = counts.reshape(num_cells, num_kinds)[:, ::-1]
    return [int(kind) for kind in num_kinds - 1 - backwards.argmax(axis=1)]


def legend(kinds: npt.NDArray[np.intp], style: Style) -> str:
    """What the signs of the map mean, of all that is usual and what else there is."""
    shown = [kind for place, kind in enumerate(BLOCK_KINDS) if kind is not _QUARANTINED or place in kinds]
    return "  ".join(f"{style.paint(kind.drawn(style), kind.color)} {kind.name}" for kind in reversed(shown))


def _painted(cells: Sequence[int], style: Style) -> str:
    runs = ((BLOCK_KINDS[kind], len(list(run))) for kind, run in groupby(cells))
    return "".join(style.paint(kind.drawn(style) * length, kind.color) for kind, length in runs)
