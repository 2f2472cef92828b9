// Who has to go, and where to.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

bool Scheduler::preempt(GroupId id, PreemptionMode mode) {
  if (!groups_.contains(id)) {
    return false;
  }
  forced_.push_back({id, mode});
  return true;
}

void Scheduler::set_costs(const PreemptionCosts& costs) {
  validate(costs);
  config_.costs = costs;
  weigh_evictions();
}

void Scheduler::preempt_as_told() {
  preempted_.clear();
  swapped_out_.clear();
  swapped_in_.clear();
  let_in_.clear();
  cached_.clear();
  kept_out_.clear();
  swapped_for_room_ = false;
  for (const ForcedPreemption& forced : std::exchange(forced_, {})) {
    const auto found = groups_.find(forced.id);
    if (found != groups_.end() && found->second.state == GroupState::kRunning) {
      move_out(found->second, forced.mode);
    }
  }
}

void Scheduler::preempt_for_room(SequenceGroup& group) {
  move_out(group, config_.policy.preemption_mode);
  swapped_for_room_ = swapped_for_room_ || group.state == GroupState::kSwapped;
  kept_out_.push_back(group.id);
}

void Scheduler::move_out(SequenceGroup& group, PreemptionMode mode) {
  plan_.take_out(group);
  std::erase(let_in_, group.id);
  std::erase(cut_, &group);
  bool holds_something = false;
  for (const auto& sequence : group.sequences) {
    sequence->table().truncate(kv_cache_.blocks_for(sequence->num_computed_tokens()));
    holds_something = holds_something || sequence->table().size() > 0;
  }
  group.stakes = mode == PreemptionMode::kAuto ? stakes_of(group) : PreemptionStakes{};
  const std::int64_t copies_before = num_swap_copies();
  if (holds_something && wants_swap(group, mode) && kv_cache_.swap_out(group.tables())) {
    group.num_blocks_swapped_out += num_swap_copies() - copies_before;
    forecast_.see_swapped_out(std::exchange(group.stakes, {}));
    change_state(group, GroupState::kSwapped);
    swapped_out_.push_back(group.id);
    ++stats_.num_groups_swapped_out;
  } else {
    group.forget_computed(kv_cache_);
    change_state(group, GroupState::kWaiting);
  }
  preempted_.push_back(group.id);
  ++group.num_preemptions;
  ++stats_.num_preemptions;
}

bool Scheduler::wants_swap(const SequenceGroup& group, PreemptionMode mode) const {
  switch (mode) {
    case PreemptionMode::kRecompute:
      return false;
    case PreemptionMode::kSwap:
      return true;
    case PreemptionMode::kByBranches:
      return group.num_sequences() > 1;
    case PreemptionMode::kAuto:
      return forecast_.cost_of_swap(group.stakes, config_.costs) <
             forecast_.cost_of_recompute(group.stakes, config_.costs, config_.block_size);
  }
  return false;
}

// What it would lose by being preempted now. The cache is asked for the first branch alone: what the others have beyond
// it is computed again.
PreemptionStakes Scheduler::stakes_of(const SequenceGroup& group) const {
  struct Use {
    std::int32_t num_tokens = 0;
    std::int32_t num_holders = 0;  // of this group
    bool is_first = false;         // branch's
  };
  std::unordered_map<BlockId, Use> uses;
  for (const auto& sequence : group.sequences) {
    std::int32_t num_tokens = sequence->num_computed_tokens();
    for (const BlockId block : sequence->table().blocks()) {
      Use& use = uses[block];
      use.num_tokens = std::max(use.num_tokens, std::min(num_tokens, config_.block_size));
      use.is_first = use.is_first || sequence == group.sequences.front();
      ++use.num_holders;
      num_tokens -= config_.block_size;
    }
  }
  PreemptionStakes stakes;
  stakes.num_blocks = std::ssize(uses);
  stakes.num_blocks_out = kv_cache_.missing_to_swap_out(group.tables());
  const BlockPool& pool = kv_cache_.device_pool();
  for (const auto& [block, use] : uses) {
    const bool is_cached = use.is_first && !group.skip_prefix_cache && pool.is_cached(block);
    const bool is_safe = is_cached && pool.ref_count(block) > use.num_holders;
    (is_safe     ? stakes.num_safe_tokens
     : is_cached ? stakes.num_cached_tokens
                 : stakes.num_lost_tokens) += use.num_tokens;
  }
  return stakes;
}

RequestCost Scheduler::request_cost(GroupId id) const {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    for (const auto* ended : {&costs_of_ended_, &costs_ended_before_}) {
      if (const auto cost = ended->find(id); cost != ended->end()) {
        return cost->second;
      }
    }
    return {};
  }
  const SequenceGroup& group = found->second;
  return {.num_preemptions = group.num_preemptions,
          .num_tokens_recomputed = group.num_tokens_recomputed,
          .num_blocks_swapped_out = group.num_blocks_swapped_out,
          .num_blocks_swapped_in = group.num_blocks_swapped_in};
}

}  // namespace fastpaged
