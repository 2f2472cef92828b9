// KVCacheManager's way to go on when something has broken it.
#include <algorithm>
#include <stdexcept>

#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

KVCacheManager::Faults KVCacheManager::faults(std::span<const std::int32_t> device_holders,
                                              std::span<const std::int32_t> host_holders) const {
  Faults faults = {.on_device = device_.faults(device_holders), .on_host = host_.faults(host_holders), .of_cache = {}};
  for (BlockId block = 0; prefix_caching_ && block < device_.num_blocks(); ++block) {
    if (device_.is_cached(block) != prefix_cache_.holds(block)) {
      faults.on_device.push_back(
          {block, "block " + std::to_string(block) + " of the device pool is " +
                      (device_.is_cached(block) ? "said to be cached" : "cached unknown to it")});
    }
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
  for (const BlockFault& fault : faults.on_device) {
    if (prefix_caching_ && prefix_cache_.holds(fault.block)) {
      static_cast<void>(prefix_cache_.erase(fault.block));
    }
  }
  device_.quarantine(faults.on_device, [&](BlockId block) { return prefix_caching_ && prefix_cache_.holds(block); });
  host_.quarantine(faults.on_host, [](BlockId) { return false; });
}

}  // namespace fastpaged
