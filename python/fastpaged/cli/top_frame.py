"""One frame of `fastpaged top`: the pool, its blocks, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.cli.kv_map import block_kinds, block_map, legend, pool_bar
from fastpaged.cli.screen import cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged import _core
    from fastpaged.cli.screen import Style

_TITLES = ("request", "state", "seqs", "prompt", "output", "blocks", "shared", "charged", "saved", "preempted")
_WIDTHS = (9, 13, 4, 6, 6, 6, 6, 7, 5, 9)
_STATES = ("running", "swapped", "waiting")  # in the order of the list
_SHARE_OF_MAP = 0.5  # of the lines that there are for map and requests


@dataclass(frozen=True)
class Rates:
    """Over the last while. hit_rate: tokens of prompts that the cache had, since the beginning; None: none was looked
    up."""

    generated_per_second: float  # tokens
    preemptions_per_second: float
    num_preemptions: int
    hit_rate: float | None


@dataclass(frozen=True)
class View:
    """What is shown. about: where it comes from; seconds: of the recording; trouble: why it is not to be relied on, or
    ""."""

    title: str
    about: str
    seconds: float
    snapshot: _core.KVSnapshot
    rates: Rates
    trouble: str = ""


def frame(view: View, width: int, height: int, style: Style) -> list[str]:
    """At most so many lines, of at most so many columns."""
    snapshot = view.snapshot
    head = [_first_line(view, width, style)]
    if view.trouble:
        head.append(style.paint(view.trouble, "red"))
    head += _tier_lines("device", snapshot.device, snapshot.block_size, width, style)
    if len(snapshot.host.num_tokens):
        head += _tier_lines("host", snapshot.host, snapshot.block_size, width, style)
    head += [_counts_line(view), ""]
    rest = height - len(head)
    kinds = block_kinds(snapshot.device, snapshot.block_size)
    drawn = block_map(kinds, width, max(1, int(rest * _SHARE_OF_MAP) - 2), style)
    each = "a block" if drawn.blocks_per_cell == 1 else f"{drawn.blocks_per_cell} blocks"
    lines = [*head, f"{legend(kinds, style)}   a cell: {each}", *drawn.lines, ""]
    lines += _request_lines(snapshot.requests, snapshot.step, height - len(lines), style)
    return [cut(line, width) for line in lines[:height]]


def _first_line(view: View, width: int, style: Style) -> str:
    rates = view.rates
    hits = "" if rates.hit_rate is None else f"  hits {100 * rates.hit_rate:.0f}%"
    speed = f"{rates.generated_per_second:.0f} tok/s{hits}"
    right = f"{speed}  step {view.snapshot.step}  {view.seconds:.1f} s  {view.about}"
    left = f"fastpaged top  {view.title}"[: max(0, width - len(right) - 2)]
    return style.paint(left, "bold") + " " * max(1, width - len(left) - len(right)) + right


def _tier_lines(name: str, tier: _core.TierUse, block_size: int, width: int, style: Style) -> list[str]:
    """Figures, then the bar."""
    split = tier.split
    named = [("tokens", split.token_states), ("reserved", split.reserved), ("waste", split.internal_waste)]
    shares = [f"{what} {_share(count, split)}" for what, count in named]
    shares.append(f"free {_share(split.free, split)} (cached {_share(split.cached_free, split)})")
    shares += [f"quarantined {_share(split.quarantined, split)}"] if split.quarantined else []
    label = f"{name} {split.num_slots // block_size} x {block_size} "
    bar = pool_bar(split, max(1, width - len(label) - 2), style)
    return ["  ".join([*shares, f"saved {_share(split.saved, split)}"]), f"{label}[{bar}]"]


def _share(part: int, split: _core.SlotSplit) -> str:
    return f"{100 * part / split.num_slots:.1f}%"


def _counts_line(view: View) -> str:
    counts = [f"{state} {sum(request.state == state for request in view.snapshot.requests)}" for state in _STATES]
    split, rates = view.snapshot.device.split, view.rates
    in_use = split.token_states + split.reserved + split.internal_waste
    used = f"used: {100 * split.token_states / in_use:.1f}% tokens" if in_use else "used: none"
    preempted = f"preempted {rates.num_preemptions} ({rates.preemptions_per_second:.1f}/s)"
    return "  ".join([*counts, preempted, used])


def _request_lines(requests: Sequence[_core.RequestUse], step: int, num_lines: int, style: Style) -> list[str]:
    """Who runs, then who is swapped, then who waits, each in order of arrival; the rest as a number."""
    if not requests or num_lines < 2:
        return []
    ordered = sorted(requests, key=lambda request: _STATES.index(request.state))
    num_shown = len(ordered) if len(ordered) < num_lines else num_lines - 2
    lines = [style.paint(_row(_TITLES), "bold"), *(_request_line(request, step) for request in ordered[:num_shown])]
    if num_shown < len(ordered):
        lines.append(style.paint(f"and {len(ordered) - num_shown} more", "dim"))
    return lines


def _request_line(request: _core.RequestUse, step: int) -> str:
    bill = request.bill
    state = request.state if request.state == "running" else f"{request.state} {step - request.in_line_since}"
    figures = [request.num_sequences, request.num_prompt_tokens, request.num_output_tokens]
    figures += [bill.num_owned + bill.num_shared, bill.num_shared, bill.num_charged, bill.num_saved]
    return _row((f"#{request.id}", state, *map(str, figures), str(request.num_preemptions)))


def _row(cells: Sequence[str]) -> str:
    return " ".join(
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    )
