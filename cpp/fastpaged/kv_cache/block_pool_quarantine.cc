// BlockPool's way to go on when something has broken it: find the blocks that are wrong, and do without them.
#include <algorithm>
#include <numeric>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/block_pool.h"

namespace fastpaged {

std::vector<BlockFault> BlockPool::faults(std::span<const std::int32_t> holders) const {
  invariant(std::ssize(holders) == num_blocks(), "BlockPool: holders of other blocks");
  std::vector<bool> is_free(ref_counts_.size(), false);
  for (const BlockId block : free_list_.reachable_ids()) {
    is_free[block] = true;
  }
  std::vector<BlockFault> faults;
  for (BlockId block = 0; block < num_blocks(); ++block) {
    const auto add = [&](const std::string& what) {
      const std::optional<SequenceId>& last = last_owner_[block];
      faults.push_back({block, "block " + std::to_string(block) + " of the " + name_ + " pool " + what +
                                   (last ? "; last taken, shared or given back by " + owner_name(*last) : "")});
    };
    if (quarantined_[block]) {
      continue;
    }
    if (holders[block] != ref_counts_[block]) {
      add("has " + std::to_string(ref_counts_[block]) + " references, and " + std::to_string(holders[block]) +
          " tables hold it");
    } else if ((ref_counts_[block] == 0) != is_free[block]) {
      add(is_free[block] ? "is on the free list, and held" : "is neither held nor on the free list");
    }
  }
  return faults;
}

void BlockPool::quarantine(std::span<const BlockFault> faults, const std::function<bool(BlockId)>& is_cached) {
  for (const BlockFault& fault : faults) {
    num_quarantined_ += quarantined_[fault.block] ? 0 : 1;
    quarantined_[fault.block] = true;
    ref_counts_[fault.block] = 0;
  }
  num_references_ = std::accumulate(ref_counts_.begin(), ref_counts_.end(), std::int64_t{0});
  for (BlockId block = 0; block < num_blocks(); ++block) {
    cached_[block] = !quarantined_[block] && is_cached(block);
  }
  std::vector<BlockId> free = free_list_.reachable_ids();
  std::vector<bool> listed(ref_counts_.size(), false);
  for (const BlockId block : free) {
    listed[block] = true;
  }
  for (BlockId block = 0; block < num_blocks(); ++block) {
    if (!listed[block]) {
      free.push_back(block);
    }
  }
  std::erase_if(free, [&](BlockId block) { return quarantined_[block] || ref_counts_[block] != 0; });
  std::ranges::stable_partition(free, [&](BlockId block) { return !cached_[block]; });
  free_list_.assign(free);
}

}  // namespace fastpaged
