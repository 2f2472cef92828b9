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
  bool host_tier = false;                       // what the device evicts goes on being cached on the host
};

// The cached blocks that hold the beginning of a text: whole ones, and one of which only the beginning counts.
struct PrefixMatch {
  std::vector<BlockId> blocks;          // of the device
  std::vector<BlockId> host_blocks;     // of the host, which go on from there: to be copied in
  BlockId partial_block = 0;            // if num_partial_tokens > 0: to be copied
  bool partial_on_host = false;         // which is then a host block
  std::int32_t num_partial_tokens = 0;  // less than a block has
  std::int32_t num_tokens = 0;          // in all
  std::int32_t num_in_use = 0;          // of `blocks`, held by somebody already: they take no free block
  std::uint64_t generation = 0;         // of the cache: nothing has been forgotten or moved since

  // Whole ones, of both tiers.
  [[nodiscard]] std::int32_t num_blocks() const {
    return static_cast<std::int32_t>(blocks.size() + host_blocks.size());
  }
  // Of num_tokens, those that the device has.
  [[nodiscard]] std::int32_t num_device_tokens(std::int32_t block_size) const {
    const bool partial = host_blocks.empty() && !partial_on_host;
    return static_cast<std::int32_t>(blocks.size()) * block_size + (partial ? num_partial_tokens : 0);
  }
  // What of it takes nothing but blocks that are on the device: whole ones.
  void keep_device_blocks(std::int32_t block_size) {
    host_blocks.clear();
    num_partial_tokens = 0;
    num_tokens = static_cast<std::int32_t>(blocks.size()) * block_size;
  }
  // Free blocks that adopting it takes, without the copy of the partial one.
  [[nodiscard]] std::int32_t num_revived() const { return num_blocks() - num_in_use; }
};

// Kept for each sequence that publishes. A branch starts with a copy of its parent's; a sequence whose table is emptied
// to be recomputed starts with a new one; one that is moved to the other tier keeps it.
struct PublishedPrefix {
  std::int32_t num_blocks = 0;
  std::uint64_t last_entry = 0;  // what the last of them holds (PrefixCache::entry_id)
  std::uint64_t epoch = 0;       // the reset since which it is computed; 0: not known yet
};

}  // namespace fastpaged
