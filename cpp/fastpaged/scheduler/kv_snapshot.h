// KVSnapshot: who holds what of the KV memory at one moment, down to the slot. Scheduler::snapshot() reads it off the
// block tables when it is asked for; nothing is kept for it.
//
// A slot is room for the K and V of one token. Whether the copies and tokens of a plan that is out have been carried
// out is not the scheduler's to know: copies count as done, tokens as reserved until update().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/cache_events.h"
#include "fastpaged/scheduler/prefix_pins.h"
#include "fastpaged/scheduler/sequence_group.h"

namespace fastpaged {

// One tier's slots, as in the paper's Fig. 2: the first five are all there are. External waste is none, for any free
// block serves anybody.
struct SlotSplit {
  std::int64_t num_slots = 0;
  std::int64_t token_states = 0;    // hold a computed token, of a sequence's or a pin's
  std::int64_t reserved = 0;        // taken for tokens of the plan that is out
  std::int64_t internal_waste = 0;  // the rest of blocks that somebody holds
  std::int64_t free = 0;            // of blocks that nobody holds
  std::int64_t quarantined = 0;     // of blocks out of circulation, after a broken invariant: mostly none
  // Beside these:
  std::int64_t cached_free = 0;  // of the free ones: what they hold can still be found
  std::int64_t pinned = 0;       // of blocks that pins hold
  std::int64_t saved = 0;        // that there would have to be more, if nothing were shared: whole blocks

  [[nodiscard]] std::int64_t in_use() const { return num_slots - free - quarantined; }
  bool operator==(const SlotSplit&) const = default;
};

// An entry of a block table. Whose: a sequence's, or (from kFirstPinOwner on) a pin's.
struct BlockHolder {
  SequenceId owner = 0;
  GroupId group_id = 0;    // of a sequence
  std::int32_t index = 0;  // of the entry in that table
  bool operator==(const BlockHolder&) const = default;
};

struct BlockUse {
  std::int32_t num_holders = 0;   // its reference count
  std::int32_t num_tokens = 0;    // slots that hold a computed token; a cached block is full, held or not
  std::int32_t num_reserved = 0;  // slots for tokens of the plan that is out
  bool cached = false;
  bool pinned = false;             // a pin holds it
  bool quarantined = false;        // nobody may take it any more
  std::uint64_t content_hash = 0;  // of a cached block: see content_hash.h; else 0
  std::uint64_t last_use = 0;      // the step in which it was last taken, shared, given back or written into; 0: never
  bool operator==(const BlockUse&) const = default;
};

struct TierUse {
  SlotSplit split;
  std::vector<BlockUse> blocks;
  std::vector<BlockHolder> holders;        // of block 0, then of block 1, ...; of one block: pins, then as they arrived
  std::vector<std::int32_t> first_holder;  // [num_blocks + 1]: where those of each block begin

  [[nodiscard]] std::span<const BlockHolder> holders_of(BlockId block) const {
    return std::span(holders).subspan(first_holder[block], first_holder[block + 1] - first_holder[block]);
  }
};

// What somebody holds, and what of it others pay for. A block is charged once: to the first of its holders in the order
// of pins by id, then requests by arrival. All charges together are all blocks that anybody holds; all that is saved is
// what there would have to be more without sharing.
struct BlockBill {
  std::int64_t num_entries = 0;  // of block tables: what it would hold without sharing
  std::int64_t num_owned = 0;    // blocks that nobody else holds, be they shared among its own branches
  std::int64_t num_shared = 0;   // blocks that others hold, too
  std::int64_t num_charged = 0;

  [[nodiscard]] std::int64_t num_saved() const { return num_entries - num_charged; }
  bool operator==(const BlockBill&) const = default;
};

struct RequestUse {
  GroupId id = 0;
  GroupState state = GroupState::kWaiting;
  std::int32_t priority = 0;
  std::int32_t num_sequences = 0;
  std::int32_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;    // of all its sequences
  std::int64_t num_tokens = 0;           // known ones, of all its sequences: each has the prompt
  std::int64_t num_computed_tokens = 0;  // of those
  BlockBill bill;                        // of blocks of one tier: the host's if it is swapped
  std::int64_t in_line_since = 0;        // unless it runs: the step after which it came in line, waiting or swapped
  std::int64_t num_preemptions = 0;
  std::int64_t num_tokens_recomputed = 0;
  std::int64_t num_blocks_swapped_out = 0;
  std::int64_t num_blocks_swapped_in = 0;
};

struct PinUse {
  PinnedPrefix pin;
  BlockBill bill;
};

struct KVSnapshot {
  std::uint64_t step = 0;  // the last schedule()
  bool planned = false;    // its plan is out: update() has not come yet
  std::int32_t block_size = 0;
  TierUse device;
  TierUse host;
  std::vector<RequestUse> requests;  // in order of arrival
  std::vector<PinUse> pins;          // in order of id
};

}  // namespace fastpaged
