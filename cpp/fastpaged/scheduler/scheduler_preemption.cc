// Who has to go, and where to.
#include <algorithm>
#include <cmath>
#include <string>
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
  for (const double seconds : {costs.seconds_per_token, costs.seconds_per_block_out, costs.seconds_per_block_in}) {
    require(std::isfinite(seconds) && seconds >= 0.0,
            [&] { return "costs must be seconds >= 0, got " + std::to_string(seconds); });
  }
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
  bool holds_something = false;
  for (const auto& sequence : group.sequences) {
    sequence->table().truncate(kv_cache_.blocks_for(sequence->num_computed_tokens()));
    holds_something = holds_something || sequence->table().size() > 0;
  }
  const bool wants_swap =
      mode == PreemptionMode::kSwap || (mode == PreemptionMode::kByBranches && group.num_sequences() > 1);
  if (wants_swap && holds_something && kv_cache_.swap_out(group.tables())) {
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

}  // namespace fastpaged
