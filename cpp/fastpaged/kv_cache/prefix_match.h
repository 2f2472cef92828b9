// What a look into the prefix cache finds, and how far a sequence's own blocks are in it.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

struct PrefixCaching {
  bool enabled = false;
  std::uint64_t hash_mask = ~std::uint64_t{0};  // which bits of a key's hash are used; fewer only in tests
  std::int64_t max_events = 0;                  // kept for take_cache_events(); 0: none
};

// The cached blocks that hold the beginning of a text: whole ones, and one of which only the beginning counts.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  BlockId partial_block = 0;            // if num_partial_tokens > 0: to be copied
  std::int32_t num_partial_tokens = 0;  // less than a block has
  std::int32_t num_tokens = 0;          // in all
  std::int32_t num_in_use = 0;          // of `blocks`, held by somebody already: they take no free block
  std::uint64_t generation = 0;         // of the cache: nothing has been forgotten since

  // Free blocks that adopting it takes, without the copy.
  [[nodiscard]] std::int32_t num_revived() const { return static_cast<std::int32_t>(blocks.size()) - num_in_use; }
};

// Kept for each sequence that publishes. A branch starts with a copy of its parent's; a sequence whose table is emptied
// to be recomputed starts with a new one; one that is moved to the other tier keeps it.
struct PublishedPrefix {
  std::int32_t num_blocks = 0;
  std::uint64_t last_entry = 0;  // what the last of them holds (PrefixCache::entry_id)
  std::uint64_t epoch = 0;       // the reset since which it is computed; 0: not known yet
};

}  // namespace fastpaged
