// HashedKV: both tiers of a KV cache as real bytes. Each slot holds, for each layer, as K and as V, a hash of the
// history of the token that was computed there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/kv_cache/block_pool.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "proofs/history.h"

namespace fastpaged::test {

class HashedKV {
 public:
  HashedKV(const KVCacheManager& kv_cache, int num_layers);

  void copy(std::span<const BlockCopy> copies);  // the real thing
  void spoil_free_blocks();                      // what a free block holds must not matter, unless it is cached
  void write(std::int64_t device_slot, History history);
  // pool: the cache's device or host pool, whichever the block is of.
  [[nodiscard]] bool holds(const BlockPool& pool, BlockId block, std::int32_t offset, History history) const;

 private:
  // A block is [num_layers, K|V, block_size] words, as in the engine, with heads of one word.
  [[nodiscard]] std::int64_t word(BlockId block, int layer, int kv, std::int32_t offset) const;

  const KVCacheManager* kv_cache_;
  int num_layers_;
  std::vector<std::uint64_t> device_;
  std::vector<std::uint64_t> host_;
  std::uint64_t garbage_ = 0;
};

}  // namespace fastpaged::test
