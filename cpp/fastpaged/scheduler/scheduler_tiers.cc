// The host as the prefix cache's second tier: when it is worth it, what it has cost, and what of it is in doubt.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

// Without costs a block is worth its copies.
void Scheduler::weigh_evictions() {
  const PreemptionCosts& costs = config_.costs;
  kv_cache_.copy_evicted(costs.seconds_per_block_out + costs.seconds_per_block_in <=
                         costs.seconds_per_token * config_.block_size);
}

// Of a plan that was not updated, or not even finished, nobody knows whether its copies were run.
void Scheduler::distrust_copies() {
  std::vector<BlockCopy> lost = std::exchange(plan_copies_, {});
  const std::span<const BlockCopy> unfinished = kv_cache_.copies().copies();
  lost.insert(lost.end(), unfinished.begin(), unfinished.end());
  if (plan_.spent() || lost.empty()) {
    return;
  }
  kv_cache_.forget_written(lost);
  pins_.give_up_uncached();
  std::unordered_set<BlockId> on_device;
  std::unordered_set<BlockId> on_host;
  for (const BlockCopy& copy : lost) {
    for (std::int32_t i = 0; i < copy.num_blocks; ++i) {
      (copy.kind == CopyKind::kSwapOut ? on_host : on_device).insert(copy.destination + i);
    }
  }
  std::vector<SequenceGroup*> doubtful;
  for (auto& [id, group] : groups_) {
    const std::unordered_set<BlockId>& written = group.state == GroupState::kSwapped ? on_host : on_device;
    const auto is_doubtful = [&](const auto& sequence) {
      const auto num_blocks = static_cast<std::size_t>(kv_cache_.blocks_for(sequence->num_computed_tokens()));
      return std::ranges::any_of(sequence->table().blocks().first(num_blocks),
                                 [&](BlockId block) { return written.contains(block); });
    };
    if (std::ranges::any_of(group.sequences, is_doubtful)) {
      doubtful.push_back(&group);
    }
  }
  std::ranges::sort(doubtful, {}, &SequenceGroup::arrival);
  for (SequenceGroup* group : doubtful) {
    group->forget_computed(kv_cache_);
    change_state(*group, GroupState::kWaiting);
  }
}

// Blocks to be copied by this plan, what makes way for them not counted.
std::int64_t Scheduler::num_swap_copies() const {
  return kv_cache_.copies().num_blocks() - static_cast<std::int64_t>(kv_cache_.num_demoted_blocks());
}

void Scheduler::count_moved_prefixes() {
  const auto count = [](std::int64_t& number, std::uint64_t now) {
    return static_cast<std::int64_t>(now) - std::exchange(number, static_cast<std::int64_t>(now));
  };
  stats_.num_blocks_swapped_out -= count(stats_.num_prefix_blocks_demoted, kv_cache_.num_demoted_blocks());
  stats_.num_blocks_swapped_in -= count(stats_.num_prefix_blocks_promoted, kv_cache_.num_promoted_blocks());
  stats_.num_partial_prefix_blocks = static_cast<std::int64_t>(kv_cache_.num_partial_copies());
  stats_.num_host_cached_blocks_evicted = static_cast<std::int64_t>(kv_cache_.num_host_evicted_blocks());
}

}  // namespace fastpaged
