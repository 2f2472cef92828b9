// KVCacheManager's way to go on when something has broken it.
#include <algorithm>
#include <stdexcept>

#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

KVCacheManager::Faults KVCacheManager::faults(std::span<const std::int32_t> device_holders,
                                              std::span<const std::int32_t> host_holders) const {
  Faults faults = {.on_device = device_.faults(device_holders), .on_host = host_.faults(host_holders), .of_cache = {}};
  const auto compare = [&](const BlockPool& pool, PrefixCache::Node first, std::vector<BlockFault>& found) {
    for (BlockId block = 0; block < pool.num_blocks(); ++block) {
      if (pool.is_cached(block) != prefix_cache_.holds(first + block)) {
        found.push_back({block, "block " + std::to_string(block) + " of the " + pool.name() + " pool is " +
                                    (pool.is_cached(block) ? "said to be cached" : "cached unknown to it")});
      }
    }
  };
  if (prefix_caching_) {
    compare(device_, 0, faults.on_device);
  }
  if (host_tier_) {
    compare(host_, host_node(0), faults.on_host);
  }
  try {
    prefix_cache_.check_invariants();
  } catch (const std::logic_error& error) {
    faults.of_cache = error.what();
  }
  return faults;
}

void KVCacheManager::quarantine(const Faults& faults) {
  if (!faults.of_cache.empty()) {
    ++epoch_;
    prefix_cache_.clear();
  }
  const auto forget = [&](const std::vector<BlockFault>& found, PrefixCache::Node first) {
    for (const BlockFault& fault : found) {
      if (prefix_cache_.holds(first + fault.block)) {
        static_cast<void>(prefix_cache_.erase(first + fault.block));
      }
    }
  };
  if (prefix_caching_) {
    forget(faults.on_device, 0);
  }
  if (host_tier_) {
    forget(faults.on_host, host_node(0));
  }
  device_.quarantine(faults.on_device, [&](BlockId block) { return prefix_caching_ && prefix_cache_.holds(block); });
  host_.quarantine(faults.on_host, [&](BlockId block) { return host_tier_ && prefix_cache_.holds(host_node(block)); });
}

}  // namespace fastpaged
