// What the slow scheduler decides by: who is where, what the plan in the making has left, and what everyone still
// wants. Everything is looked up and counted again each time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "scheduler/slow_memory.h"

namespace fastpaged::test {

class SlowBooks {
 public:
  explicit SlowBooks(const SchedulerConfig& config) : memory(config), config_(config) {}

  // In order of rank.
  [[nodiscard]] std::vector<GroupId> ids(GroupState state) const {
    std::vector<GroupId> ids;
    for (const auto& [id, group] : memory.groups) {
      if (group.state == state) {
        ids.push_back(id);
      }
    }
    std::ranges::sort(ids, [&](GroupId a, GroupId b) { return goes_before(a, b); });
    return ids;
  }

  [[nodiscard]] bool goes_before(GroupId a, GroupId b) const {
    const SlowGroup& one = memory.groups.at(a);
    const SlowGroup& other = memory.groups.at(b);
    if (one.aged != other.aged) {
      return one.aged;
    }
    const bool differ = config_.policy.by_priority && !one.aged && one.asked.priority != other.asked.priority;
    return differ ? one.asked.priority < other.asked.priority : a < b;
  }

  SlowMemory memory;
  SchedulerOutput plan;
  std::vector<SequenceEvent> unreported;                   // ends of sequences at the ceiling
  std::vector<std::pair<GroupId, GroupId>> preempted_for;  // by this plan: who had to go, for whom
  bool broke_window = false;                               // ever: preempted for room who was to be kept
  bool reported = true;                                    // the plan has been updated
  SchedulerStats stats;

 protected:
  [[nodiscard]] std::map<GroupId, SlowGroup>& groups() { return memory.groups; }
  [[nodiscard]] bool has(GroupId id, SequenceId branch) const {
    return memory.groups.contains(id) && memory.groups.at(id).branches.contains(branch);
  }
  [[nodiscard]] bool runs(GroupId id) const {
    return memory.groups.contains(id) && memory.groups.at(id).state == GroupState::kRunning;
  }

  [[nodiscard]] std::int64_t num_running_branches() const {
    std::int64_t count = 0;
    for (const GroupId id : ids(GroupState::kRunning)) {
      count += memory.groups.at(id).counted();
    }
    return count;
  }

  [[nodiscard]] std::int64_t budget() const {
    std::int64_t budget = config_.max_num_batched_tokens;
    for (const ScheduledSequence& planned : plan.scheduled) {
      budget -= planned.num_tokens;
    }
    return budget;
  }

  // Scores, if these many tokens more are computed.
  [[nodiscard]] static std::int32_t scores(const SlowBranch& branch, std::int64_t tokens) {
    std::int32_t scores = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
      scores += branch.unscored.contains(branch.computed + i) ? 1 : 0;
    }
    return scores;
  }

  // Rows that are neither one of the max_num_seqs that branches own nor taken by a branch beside its own.
  [[nodiscard]] std::int64_t spare_rows() const {
    std::int64_t rows = config_.max_num_rows == 0 ? 1'000'000 : config_.max_num_rows - config_.max_num_seqs;
    for (const ScheduledSequence& planned : plan.scheduled) {
      const std::int32_t taken = planned.num_scores + (planned.samples ? 1 : 0);
      rows -= taken == 0 ? 0 : taken - 1;
    }
    return rows;
  }

  // The most of these tokens for which this branch's own row and the spare ones are enough.
  [[nodiscard]] std::int64_t cut_to_rows(const SlowBranch& branch, std::int64_t tokens) const {
    const auto rows = [&](std::int64_t n) {
      return scores(branch, n) + (branch.computed + n == std::ssize(branch.tokens) ? 1 : 0);
    };
    while (tokens > 0 && rows(tokens) > 1 + spare_rows()) {
      --tokens;
    }
    return tokens;
  }

  // What a branch may compute of its own before its group decodes.
  [[nodiscard]] static std::int64_t prefill_tokens(const SlowGroup& group, const SlowBranch& branch) {
    return branch.waits_for ? 0 : std::ssize(branch.tokens) - branch.computed - (group.size() == 1 ? 0 : 1);
  }

  std::set<GroupId> behind_;  // of which the plan computes less than it could
  SchedulerConfig config_;
};

}  // namespace fastpaged::test
