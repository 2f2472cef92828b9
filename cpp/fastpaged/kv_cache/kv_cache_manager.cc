#include "fastpaged/kv_cache/kv_cache_manager.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

BlockId take(BlockPool& pool, SequenceId owner) {
  const std::optional<BlockId> block = pool.allocate(owner);
  if (!block) {
    throw_invariant("KVCacheManager: the pool has fewer free blocks than it says", std::source_location::current());
  }
  return *block;
}

// Before the pools are made: a wrong size must not cost gigabytes first.
std::int32_t valid_block_size(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks) {
  require(num_blocks > 0, [&] { return "num_blocks must be > 0, got " + std::to_string(num_blocks); });
  require(num_host_blocks >= 0, [&] { return "num_host_blocks must be >= 0, got " + std::to_string(num_host_blocks); });
  constexpr std::int32_t kMaxBlockSize = KVCacheManager::kMaxBlockSize;
  require(block_size >= 1 && block_size <= kMaxBlockSize, [&] {
    return "block_size must be in [1, " + std::to_string(kMaxBlockSize) + "], got " + std::to_string(block_size);
  });
  constexpr std::int64_t kMaxSlots = std::numeric_limits<std::int32_t>::max();
  require(std::int64_t{num_blocks} * block_size <= kMaxSlots, [&] {
    return "num_blocks x block_size must be <= " + std::to_string(kMaxSlots) + ", got " + std::to_string(num_blocks) +
           " x " + std::to_string(block_size);
  });
  return block_size;
}

// Blocks that the prefix cache may hold.
std::int32_t num_cacheable(std::int32_t num_blocks, std::int32_t num_host_blocks, const PrefixCaching& caching) {
  return !caching.enabled ? 0 : caching.host_tier ? num_blocks + num_host_blocks : num_blocks;
}

}  // namespace

KVCacheManager::KVCacheManager(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks,
                               PrefixCaching prefix_caching)
    : block_size_(valid_block_size(num_blocks, block_size, num_host_blocks)),
      prefix_caching_(prefix_caching.enabled),
      host_tier_(prefix_caching.enabled && prefix_caching.host_tier && num_host_blocks > 0),
      device_("device", num_blocks),
      host_("host", num_host_blocks),
      cache_events_(prefix_caching.enabled ? prefix_caching.max_events : 0, num_blocks, num_host_blocks),
      prefix_cache_(num_cacheable(num_blocks, num_host_blocks, prefix_caching), block_size, prefix_caching.hash_mask),
      host_copies_(host_tier_ ? num_blocks : 0, host_tier_ ? num_host_blocks : 0) {
  prefix_cache_.tell(cache_events_);
  device_.on_eviction([this](BlockId block, SequenceId new_owner) { evict(block, new_owner); });
  host_.on_eviction([this](BlockId block, SequenceId) {
    ++num_host_evicted_;
    uncache_in_order(prefix_cache_.erase(host_node(block)));
  });
}

void KVCacheManager::check_tier(const BlockTable& table, const BlockPool& tier) {
  if (&table.pool() != &tier) {
    throw_invariant("sequence " + std::to_string(table.owner()) + " holds blocks of the " + table.pool().name() +
                        " pool where it must hold the " + tier.name() + " pool's",
                    std::source_location::current());
  }
}

void KVCacheManager::start_step(std::uint64_t step) {
  device_.start_step(step);
  host_.start_step(step);
}

std::int64_t KVCacheManager::capacity() const {
  return std::int64_t{num_usable_blocks()} * block_size_;
}

std::int32_t KVCacheManager::blocks_for(std::int64_t num_tokens) const {
  require(num_tokens >= 0 && num_tokens <= std::numeric_limits<std::int32_t>::max(),
          [&] { return "num_tokens must be in [0, 2147483647], got " + std::to_string(num_tokens); });
  return static_cast<std::int32_t>((num_tokens + block_size_ - 1) / block_size_);
}

KVCacheManager::Range KVCacheManager::written_blocks(std::int64_t first_token, std::int64_t num_tokens) const {
  if (num_tokens == 0) {
    return {0, 0};  // nothing to write, in the middle of a block too
  }
  return {static_cast<std::int32_t>(first_token / block_size_), blocks_for(first_token + num_tokens)};
}

std::int32_t KVCacheManager::missing_blocks(const BlockTable& table, std::int64_t first_token,
                                            std::int64_t num_tokens) const {
  const Range written = written_blocks(first_token, num_tokens);
  std::int32_t missing = std::max(0, written.end - table.size());
  for (std::int32_t i = written.begin; i < std::min(written.end, table.size()); ++i) {
    missing += table.is_shared(i) ? 1 : 0;
  }
  return missing;
}

bool KVCacheManager::reserve(BlockTable& table, std::int64_t first_token, std::int64_t num_tokens) {
  check_tier(table, device_);
  const Range written = written_blocks(first_token, num_tokens);
  if (missing_blocks(table, first_token, num_tokens) > device_.num_free()) {
    return false;
  }
  const std::int32_t old_size = table.size();
  invariant(table.grow_to(written.end), "KVCacheManager: less room than was counted");
  for (std::int32_t i = written.begin; i < std::min(written.end, old_size); ++i) {
    if (table.is_shared(i)) {
      const BlockId copy = take(device_, table.owner());
      copies_.add(CopyKind::kCopyOnWrite, table.blocks()[i], copy);
      table.replace(i, copy);
    } else if (device_.is_cached(table.blocks()[i])) {
      forget(table.blocks()[i]);  // a copy would be one block more than there would be without the cache
    }
    device_.note_write(table.blocks()[i]);
  }
  return true;
}

void KVCacheManager::check_writable(const BlockTable& table, std::int64_t first_token, std::int64_t num_tokens) const {
  check_tier(table, device_);
  const Range written = written_blocks(first_token, num_tokens);
  if (written.end > table.size()) {
    throw_invariant("sequence " + std::to_string(table.owner()) + " would write into block " +
                        std::to_string(written.end - 1) + " of its table, which has " + std::to_string(table.size()),
                    std::source_location::current());
  }
  for (std::int32_t i = written.begin; i < written.end; ++i) {
    const BlockId block = table.blocks()[i];
    const auto refuse = [&](const std::string& why) {
      throw_invariant("sequence " + std::to_string(table.owner()) + " would write into block " + std::to_string(block) +
                          ", which " + why,
                      std::source_location::current());
    };
    if (device_.ref_count(block) == 0) {
      refuse("is free");
    }
    if (table.is_shared(i)) {
      refuse(std::to_string(device_.ref_count(block)) + " tables share");
    }
    if (device_.is_cached(block)) {
      refuse("is cached");
    }
  }
}

void KVCacheManager::check_invariants() const {
  device_.check_invariants();
  host_.check_invariants();
  prefix_cache_.check_invariants();
  for (BlockId block = 0; block < device_.num_blocks(); ++block) {
    invariant(device_.is_cached(block) == (prefix_caching_ && prefix_cache_.holds(block)),
              "KVCacheManager: pool and cache disagree about what is cached");
  }
  check_tiers();
}

}  // namespace fastpaged
