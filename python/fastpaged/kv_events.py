"""Events of the prefix cache, for routers and other caches: whoever applies all of them, in order, to an empty set
knows what is cached, by content and tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fastpaged import _core

TierName = Literal["device", "host"]

MAX_KV_EVENTS = 100_000  # kept until they are drained


@dataclass(frozen=True)
class BlockStored:
    """A full block can be found from now on.

    block_hash: as KVBlock.content_hash. parent_block_hash: of the block before it; None: it begins the text.
    """

    block_hash: int
    parent_block_hash: int | None
    num_tokens: int
    tier: TierName


@dataclass(frozen=True)
class BlockRemoved:
    """It cannot be found any more. tier: where it was."""

    block_hash: int
    tier: TierName


@dataclass(frozen=True)
class BlockMoved:
    """It is found in `tier` now, and no longer in the other one."""

    block_hash: int
    tier: TierName


@dataclass(frozen=True)
class AllBlocksCleared:
    """Nothing can be found any more."""


KVEvent = BlockStored | BlockRemoved | BlockMoved | AllBlocksCleared


@dataclass(frozen=True)
class KVEvents:
    """num_dropped: older ones that nobody had drained when there were too many. Who has missed some knows what is
    cached again after the next AllBlocksCleared, or from a kv_snapshot()."""

    events: tuple[KVEvent, ...]
    num_dropped: int


def kv_events_of(taken: tuple[list[_core.CacheEvent], int]) -> KVEvents:
    """What Scheduler.take_cache_events() gave."""
    events, num_dropped = taken
    return KVEvents(tuple(map(_event, events)), num_dropped)


def _event(event: _core.CacheEvent) -> KVEvent:
    kind, tier_name, content_hash, parent_hash, num_tokens = event
    tier: TierName = "device" if tier_name == "device" else "host"
    match kind:
        case "stored":
            return BlockStored(content_hash, parent_hash, num_tokens, tier)
        case "removed":
            return BlockRemoved(content_hash, tier)
        case "moved":
            return BlockMoved(content_hash, tier)
        case _:
            return AllBlocksCleared()
