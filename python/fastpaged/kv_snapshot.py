"""KVSnapshot: who holds what of the KV memory at one moment, down to the slot. Frozen, and safe to keep."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastpaged import _core

_FIRST_PIN_OWNER = 2**63


@dataclass(frozen=True)
class KVSplit:
    """What the slots of one tier (room for one token's K and V each) are for, as in Fig. 2 of the paper.

    num_slots = token_states + reserved + internal_waste + external_waste + free + quarantined, always.
    token_states: hold the K and V of a computed token. reserved: taken for tokens of a step that is not done yet.
    internal_waste: the rest of blocks that somebody holds. free: of blocks that nobody holds.
    quarantined: of blocks that nobody may take any more, after a broken invariant.

    Beside these: cached_free, those of the free that hold what the prefix cache can still find; pinned, of blocks that
    pins hold; saved, how many more there would have to be if nothing were shared (whole blocks).
    """

    num_slots: int
    token_states: int
    reserved: int
    internal_waste: int
    free: int
    quarantined: int
    cached_free: int
    pinned: int
    saved: int

    @property
    def external_waste(self) -> int:
        """None: any free block serves anybody."""
        return 0

    @property
    def in_use(self) -> int:
        """Slots of blocks that somebody holds."""
        return self.num_slots - self.free - self.quarantined

    @property
    def token_state_share(self) -> float:
        """Of the slots in use, those that hold a token: what the paper's 96.3 % are. 1.0 where nothing is in use."""
        return self.token_states / self.in_use if self.in_use else 1.0


@dataclass(frozen=True)
class KVHolder:
    """Whose table a block is in, and where (index). Either request_id and sequence_id, or pin_id."""

    request_id: str | None
    sequence_id: int | None
    pin_id: int | None
    index: int


@dataclass(frozen=True)
class KVBlock:
    """One block.

    num_tokens: slots that hold a computed token; a cached block is full, held or not. num_reserved: slots for tokens of
        a step that is not done yet.
    content_hash: of a cached block, a name of its tokens and all before them (and the cache_salt): the same in every
        run and tier. None: it is not cached.
    age: steps since it was last taken, shared, given back or written into; None: never.
    holders: pins first, then requests in order of arrival.
    """

    id: int
    num_tokens: int
    num_reserved: int
    content_hash: int | None
    age: int | None
    pinned: bool
    holders: tuple[KVHolder, ...]

    @property
    def ref_count(self) -> int:
        """How many block tables it is in."""
        return len(self.holders)

    @property
    def cached(self) -> bool:
        """Whether the prefix cache finds it."""
        return self.content_hash is not None


@dataclass(frozen=True)
class KVTier:
    """name: "device", where attention reads, or "host", where swapped requests and evicted prefixes wait."""

    name: Literal["device", "host"]
    split: KVSplit
    blocks: tuple[KVBlock, ...]  # by id


@dataclass(frozen=True)
class KVBill:
    """Blocks that somebody holds, and which of them others pay for.

    logical: entries of block tables: what it would hold without sharing. owned: nobody else holds them, be they shared
        among its own samples or beams. shared: others hold them, too.
    charged: a block is charged once, to the first of its holders: pins by id, then requests in order of arrival. All
        charges together are all blocks that are held.
    """

    logical: int
    owned: int
    shared: int
    charged: int

    @property
    def held(self) -> int:
        """Blocks, each once."""
        return self.owned + self.shared

    @property
    def saved(self) -> int:
        """Blocks that others pay for, or that it holds more than once."""
        return self.logical - self.charged


@dataclass(frozen=True)
class KVRequest:
    """A request and its bill: blocks of the device, or of the host if it is swapped.

    num_tokens: of all its sequences, each with the prompt; of these num_computed_tokens are in the cache.
    steps_in_line: since it came into line, waiting or swapped; None while it runs.
    """

    request_id: str
    state: Literal["waiting", "running", "swapped"]
    priority: int
    num_sequences: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_tokens: int
    num_computed_tokens: int
    bill: KVBill
    steps_in_line: int | None
    num_preemptions: int
    num_tokens_recomputed: int
    num_blocks_swapped_out: int
    num_blocks_swapped_in: int


@dataclass(frozen=True)
class KVPin:
    """A pinned prefix and its bill."""

    pin_id: int
    num_tokens: int
    num_blocks: int  # that it wants; it holds bill.held of them
    bill: KVBill


@dataclass(frozen=True)
class KVSnapshot:
    """step: how many have been planned. planned: the last of them is not done yet."""

    step: int
    planned: bool
    block_size: int
    device: KVTier
    host: KVTier
    requests: tuple[KVRequest, ...]  # in order of arrival
    pins: tuple[KVPin, ...]  # by id

    @classmethod
    def of(cls, seen: _core.KVSnapshot, request_ids: Mapping[int, str]) -> KVSnapshot:
        """request_ids: by group id. A request that is not in it is called by that."""
        return cls(
            step=seen.step,
            planned=seen.planned,
            block_size=seen.block_size,
            device=KVTier("device", split_of(seen.device.split), _blocks(seen.device, seen.step, request_ids)),
            host=KVTier("host", split_of(seen.host.split), _blocks(seen.host, seen.step, request_ids)),
            requests=tuple(_request(use, seen.step, request_ids) for use in seen.requests),
            pins=tuple(
                KVPin(use.pin.id, use.pin.num_tokens, use.pin.num_blocks, bill_of(use.bill)) for use in seen.pins
            ),
        )

    def to_dict(self) -> dict[str, object]:
        """All of it, what is computed included, as JSON knows it; hashes as 16 hexadecimal digits."""
        return {
            "step": self.step,
            "planned": self.planned,
            "block_size": self.block_size,
            "tiers": {tier.name: _tier_as_dict(tier) for tier in (self.device, self.host)},
            "requests": [
                {**dataclasses.asdict(request), "bill": _bill_as_dict(request.bill)} for request in self.requests
            ],
            "pins": [{**dataclasses.asdict(pin), "bill": _bill_as_dict(pin.bill)} for pin in self.pins],
        }

    def __str__(self) -> str:
        """For people: the split of each tier, then everybody's bill."""
        step = f"step {self.step}, which is under way" if self.planned else f"step {self.step}"
        tiers = [tier for tier in (self.device, self.host) if tier.blocks]
        lines = [
            f"KV cache, {step}: blocks of {self.block_size} tokens",
            *_aligned([_SPLIT_TITLES, *map(_split_row, tiers)]),
            f"of the slots in use {self.device.split.token_state_share:.1%} hold tokens",
        ]
        if self.requests or self.pins:
            lines += ["", *_aligned([_BILL_TITLES, *map(_pin_row, self.pins), *map(_request_row, self.requests)])]
        return "\n".join(lines)


def split_of(split: _core.SlotSplit) -> KVSplit:
    """The core's, kept."""
    return KVSplit(**{field.name: getattr(split, field.name) for field in dataclasses.fields(KVSplit)})


def bill_of(bill: _core.BlockBill) -> KVBill:
    """The core's, kept."""
    return KVBill(bill.num_entries, bill.num_owned, bill.num_shared, bill.num_charged)


def _blocks(tier: _core.TierUse, step: int, request_ids: Mapping[int, str]) -> tuple[KVBlock, ...]:
    holders = [
        KVHolder(None, None, owner - _FIRST_PIN_OWNER, index)
        if owner >= _FIRST_PIN_OWNER
        else KVHolder(request_ids.get(group_id, str(group_id)), owner, None, index)
        for owner, group_id, index in zip(
            tier.owners.tolist(), tier.group_ids.tolist(), tier.indices.tolist(), strict=True
        )
    ]
    first = tier.first_holder.tolist()
    columns = zip(
        tier.num_tokens.tolist(),
        tier.num_reserved.tolist(),
        tier.cached.tolist(),
        tier.content_hash.tolist(),
        tier.last_use.tolist(),
        tier.pinned.tolist(),
        strict=True,
    )
    return tuple(
        KVBlock(
            id=block,
            num_tokens=num_tokens,
            num_reserved=num_reserved,
            content_hash=content_hash if cached else None,
            age=step - last_use if last_use else None,
            pinned=pinned,
            holders=tuple(holders[first[block] : first[block + 1]]),
        )
        for block, (num_tokens, num_reserved, cached, content_hash, last_use, pinned) in enumerate(columns)
    )


def _request(use: _core.RequestUse, step: int, request_ids: Mapping[int, str]) -> KVRequest:
    return KVRequest(
        request_id=request_ids.get(use.id, str(use.id)),
        state=use.state,
        priority=use.priority,
        num_sequences=use.num_sequences,
        num_prompt_tokens=use.num_prompt_tokens,
        num_output_tokens=use.num_output_tokens,
        num_tokens=use.num_tokens,
        num_computed_tokens=use.num_computed_tokens,
        bill=bill_of(use.bill),
        steps_in_line=None if use.state == "running" else step - use.in_line_since,
        num_preemptions=use.num_preemptions,
        num_tokens_recomputed=use.num_tokens_recomputed,
        num_blocks_swapped_out=use.num_blocks_swapped_out,
        num_blocks_swapped_in=use.num_blocks_swapped_in,
    )


def _tier_as_dict(tier: KVTier) -> dict[str, object]:
    split = tier.split
    shares = {"external_waste": 0, "in_use": split.in_use, "token_state_share": split.token_state_share}
    return {
        "split": {**dataclasses.asdict(split), **shares},
        "blocks": [_block_as_dict(block) for block in tier.blocks],
    }


def _block_as_dict(block: KVBlock) -> dict[str, object]:
    name = None if block.content_hash is None else f"{block.content_hash:016x}"
    return {**dataclasses.asdict(block), "content_hash": name, "ref_count": block.ref_count, "cached": block.cached}


def _bill_as_dict(bill: KVBill) -> dict[str, int]:
    return {**dataclasses.asdict(bill), "held": bill.held, "saved": bill.saved}


_SPLIT_TITLES = ("", "blocks", "tokens", "reserved", "internal", "external", "free", "cached free", "pinned", "saved")
_BILL_TITLES = (
    "request", "state", "seqs", "prompt", "output", "blocks", "owned", "shared", "charged", "saved", "preempted",
    "recomputed", "swapped",
)  # fmt: skip


def _split_row(tier: KVTier) -> tuple[str, ...]:
    split = tier.split
    figures = [split.token_states, split.reserved, split.internal_waste, split.external_waste]
    figures += [split.free, split.cached_free, split.pinned, split.saved]
    return (tier.name, str(len(tier.blocks)), *(f"{figure / split.num_slots:.1%}" for figure in figures))


def _request_row(request: KVRequest) -> tuple[str, ...]:
    bill = request.bill
    state = request.state if request.steps_in_line is None else f"{request.state} {request.steps_in_line}"
    figures = [request.num_sequences, request.num_prompt_tokens, request.num_output_tokens]
    figures += [bill.held, bill.owned, bill.shared, bill.charged, bill.saved]
    figures += [request.num_preemptions, request.num_tokens_recomputed]
    swapped = request.num_blocks_swapped_out + request.num_blocks_swapped_in
    return (request.request_id, state, *map(str, figures), str(swapped))


def _pin_row(pin: KVPin) -> tuple[str, ...]:
    bill = pin.bill
    figures = (bill.held, bill.owned, bill.shared, bill.charged, bill.saved)
    return (f"pin {pin.pin_id}", "pinned", "", str(pin.num_tokens), "", *map(str, figures), "", "", "")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """The first two columns to the left, the others, which are numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
