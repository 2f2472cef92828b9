#include "fastpaged/kv_cache/kv_cache_manager.h"

#include <limits>
#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {

KVCacheManager::KVCacheManager(std::int32_t num_blocks, std::int32_t block_size)
    : block_size_(block_size), pool_(num_blocks) {
  require(block_size >= 1 && block_size <= kMaxBlockSize, [&] {
    return "block_size must be in [1, " + std::to_string(kMaxBlockSize) + "], got " + std::to_string(block_size);
  });
  constexpr std::int64_t kMaxSlots = std::numeric_limits<std::int32_t>::max();
  require(capacity() <= kMaxSlots, [&] {
    return "num_blocks x block_size must be <= " + std::to_string(kMaxSlots) + ", got " + std::to_string(num_blocks) +
           " x " + std::to_string(block_size);
  });
}

std::int64_t KVCacheManager::capacity() const {
  return std::int64_t{pool_.num_blocks()} * block_size_;
}

std::int32_t KVCacheManager::blocks_for(std::int64_t num_tokens) const {
  require(num_tokens >= 0 && num_tokens <= std::numeric_limits<std::int32_t>::max(),
          [&] { return "num_tokens must be in [0, 2147483647], got " + std::to_string(num_tokens); });
  return static_cast<std::int32_t>((num_tokens + block_size_ - 1) / block_size_);
}

bool KVCacheManager::reserve(BlockTable& table, std::int64_t num_tokens) {
  return table.grow_to(blocks_for(num_tokens));
}

void KVCacheManager::check_invariants() const {
  pool_.check_invariants();
}

}  // namespace fastpaged
