// The slow scheduler's side of preemption by cost, and of the window in which who came back keeps its blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/slow_sharing.h"

namespace fastpaged::test {

class SlowWindows : public SlowSharing {
 public:
  using SlowSharing::SlowSharing;

  // Whether this group came back not more than the window ago.
  [[nodiscard]] bool is_kept(GroupId id) const {
    const SlowGroup& group = memory.groups.at(id);
    return window() > 0 && group.came_back_at > 0 && step_ <= group.came_back_at + window();
  }

  // What it would lose: tokens, each as it lies in one slot of one block, and blocks.
  [[nodiscard]] PreemptionStakes stakes_of(const SlowGroup& group) const {
    std::set<std::pair<BlockId, std::int64_t>> slots;
    for (const SlowBranch& branch : group.branches | std::views::values) {
      for (std::int64_t token = 0; token < branch.computed; ++token) {
        slots.emplace(branch.blocks[token / config_.block_size], token % config_.block_size);
      }
    }
    const std::vector<BlockId>& first = group.branches.begin()->second.blocks;
    PreemptionStakes stakes;
    stakes.num_blocks = std::ssize(group.held());
    stakes.num_blocks_out =
        std::ranges::count_if(group.held(), [&](BlockId block) { return !memory.copy_of(block, true); });
    for (const auto& [block, slot] : slots) {
      const bool is_found = memory.cached.contains({false, block}) && std::ranges::count(first, block) > 0;
      if (!is_found || group.asked.skip_prefix_cache) {
        ++stakes.num_lost_tokens;
      } else {
        ++(is_others(group, block) ? stakes.num_safe_tokens : stakes.num_cached_tokens);
      }
    }
    return stakes;
  }

 protected:
  [[nodiscard]] std::int64_t window() const { return config_.policy.resume_grace_steps; }

  [[nodiscard]] bool swaps(const SlowGroup& group, PreemptionMode mode) const {
    return mode == PreemptionMode::kSwap || (mode == PreemptionMode::kByBranches && group.size() > 1) ||
           (mode == PreemptionMode::kAuto &&
            forecast_.cost_of_swap(group.stakes, config_.costs) <
                forecast_.cost_of_recompute(group.stakes, config_.costs, config_.block_size));
  }

  // How many steps after this one the blocks must be enough for, if this group comes in: those of its own window, or
  // what is left of others'.
  [[nodiscard]] std::int64_t steps_to_keep(GroupId entering) const {
    if (memory.groups.at(entering).num_preemptions > 0) {
      return window();
    }
    std::int64_t most = 0;
    for (const GroupId id : ids(GroupState::kRunning)) {
      most = is_kept(id) ? std::max(most, memory.groups.at(id).came_back_at + window() - step_) : most;
    }
    return most;
  }

  // Free blocks that this group may yet take for the tokens it knows, and for those of `steps` more steps.
  [[nodiscard]] std::int64_t lacking_within(GroupId id, std::int64_t steps) const {
    const SlowGroup& group = memory.groups.at(id);
    std::int64_t count = 0;
    for (const SlowBranch& branch : group.branches | std::views::values) {
      const std::int64_t end = std::ssize(branch.tokens) + growth(group, branch, steps);
      count += branch.waits_for ? memory.blocks_for(end) - branch.common / config_.block_size
                                : std::ssize(memory.lacking(group, branch, end - branch.computed));
    }
    for (std::int64_t i = group.size(); steps > 0 && i < group.counted(); ++i) {  // samples that are still to part
      const SlowBranch& prompt = group.branches.begin()->second;
      const std::int64_t length = std::ssize(prompt.tokens);
      count += memory.blocks_for(length + growth(group, prompt, steps)) - length / config_.block_size;
    }
    return count;
  }

  // Beside what the entering group and all that run take: as many as one of them may ask to be free.
  [[nodiscard]] std::int64_t reserve_within(GroupId entering, std::int64_t steps) const {
    std::int64_t most = memory.groups.at(entering).counted();
    std::int64_t count = 0;
    for (const GroupId id : ids(GroupState::kRunning)) {
      count += steps > 0 || config_.policy.counts_running_needs ? lacking_within(id, steps) : 0;
      most = std::max(most, memory.groups.at(id).counted());
    }
    return count + (steps > 0 && config_.policy.block_per_branch ? most : 0);
  }

  // The last of those that nobody keeps, from this group on, but not the first of all; or the last.
  [[nodiscard]] GroupId victim_for(GroupId id) const {
    const std::vector<GroupId> running = ids(GroupState::kRunning);
    std::vector<GroupId> victims(std::ranges::find(running, id), running.end());
    std::erase_if(victims, [&](GroupId other) { return other == running.front() || is_kept(other); });
    return victims.empty() ? running.back() : victims.back();
  }

  std::int64_t step_ = 0;
  PreemptionForecast forecast_;  // numbers alone: what they are of is counted here

 private:
  [[nodiscard]] std::int64_t growth(const SlowGroup& group, const SlowBranch& branch, std::int64_t steps) const {
    const std::int64_t last =
        std::min<std::int64_t>(branch.prompt + group.asked.stop.max_tokens, config_.max_model_len);
    return std::min(steps, last - 1 - std::ssize(branch.tokens));
  }

  [[nodiscard]] bool is_others(const SlowGroup& group, BlockId block) const {
    std::int64_t own = 0;
    for (const SlowBranch& branch : group.branches | std::views::values) {
      own += std::ranges::count(branch.blocks, block);
    }
    return memory.holders(block) > own;
  }
};

}  // namespace fastpaged::test
