"""What fastpaged._core's scheduler says of the KV memory (bind_snapshot.cc, bind_prefixes.cc). Only for readers and
type checkers: no module of this name exists at run time."""

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

class PinnedPrefix:
    """num_blocks: that its tokens fill, and that count in max_pinned_blocks; it holds the first num_held_blocks."""

    id: Final[int]
    num_tokens: Final[int]
    num_blocks: Final[int]
    num_held_blocks: Final[int]

class SlotSplit:
    """Slots of one tier: the first is the sum of the next five; the last three are beside these. See kv_snapshot.h."""

    num_slots: Final[int]
    token_states: Final[int]
    reserved: Final[int]
    internal_waste: Final[int]
    free: Final[int]
    quarantined: Final[int]
    cached_free: Final[int]
    pinned: Final[int]
    saved: Final[int]

class TierUse:
    """Of each block of a tier: who holds it (its holders are owners[first_holder[b] : first_holder[b + 1]] and so on),
    how many of its slots hold a computed token or are reserved for one, its name if it is cached (else 0), and in which
    step it was last taken, shared, given back or written into (0: never). Owners are sequences, or pins from 2^63 on;
    indices: of the block in its owner's table. Each read is a copy."""

    split: Final[SlotSplit]
    num_holders: Final[npt.NDArray[np.int32]]
    num_tokens: Final[npt.NDArray[np.int32]]
    num_reserved: Final[npt.NDArray[np.int32]]
    cached: Final[npt.NDArray[np.bool_]]
    pinned: Final[npt.NDArray[np.bool_]]
    quarantined: Final[npt.NDArray[np.bool_]]
    content_hash: Final[npt.NDArray[np.uint64]]
    last_use: Final[npt.NDArray[np.uint64]]
    first_holder: Final[npt.NDArray[np.int32]]
    owners: Final[npt.NDArray[np.uint64]]
    group_ids: Final[npt.NDArray[np.uint64]]
    indices: Final[npt.NDArray[np.int32]]

class BlockBill:
    """num_entries = num_charged + num_saved; num_owned + num_shared blocks are held."""

    num_entries: Final[int]
    num_owned: Final[int]
    num_shared: Final[int]
    num_charged: Final[int]
    num_saved: Final[int]

class RequestUse:
    id: Final[int]
    state: Final[Literal["waiting", "running", "swapped"]]
    priority: Final[int]
    num_sequences: Final[int]
    num_prompt_tokens: Final[int]
    num_output_tokens: Final[int]
    num_tokens: Final[int]
    num_computed_tokens: Final[int]
    bill: Final[BlockBill]
    in_line_since: Final[int]
    num_preemptions: Final[int]
    num_tokens_recomputed: Final[int]
    num_blocks_swapped_out: Final[int]
    num_blocks_swapped_in: Final[int]

class PinUse:
    pin: Final[PinnedPrefix]
    bill: Final[BlockBill]

class KVSnapshot:
    step: Final[int]
    planned: Final[bool]
    block_size: Final[int]
    device: Final[TierUse]
    host: Final[TierUse]
    requests: Final[list[RequestUse]]
    pins: Final[list[PinUse]]

# (kind, tier, content hash, the parent's or None, num_tokens); kind: "stored", "removed", "moved" or "cleared"; tier:
# "device" or "host", where it is now, or was when it was removed.
CacheEvent = tuple[str, str, int, int | None, int]
