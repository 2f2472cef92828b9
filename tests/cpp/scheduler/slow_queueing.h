// The slow scheduler's side of time: whose deadline has come, and who has been in line for long.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>

#include "scheduler/slow_windows.h"

namespace fastpaged::test {

class SlowQueueing : public SlowWindows {
 public:
  using SlowWindows::SlowWindows;

  std::int64_t num_aged = 0;
  std::optional<GroupId> first_in_rank;  // when the last plan was begun

 protected:
  // Whose time is up, as long as there is somebody: by that time, deadlines first, then by arrival.
  void end_expired(Nanoseconds now) {
    while (true) {
      using Due = std::tuple<Nanoseconds, FinishReason, GroupId>;
      std::optional<Due> first;
      for (const auto& [id, group] : groups()) {
        const Nanoseconds in_queue = group.was_let_in ? kNoDeadline : group.asked.queue_deadline;
        for (const Due& due :
             {Due{group.asked.deadline, FinishReason::kDeadline, id}, Due{in_queue, FinishReason::kQueueTimeout, id}}) {
          first = std::get<0>(due) <= now ? std::min(first.value_or(due), due) : first;
        }
      }
      if (!first) {
        return;
      }
      const auto& [when, reason, id] = *first;
      for (const auto& [branch_id, branch] : groups().at(id).branches) {
        unreported.push_back({.group_id = id,
                              .sequence_id = branch_id,
                              .parent_id = branch_id,
                              .branch = branch.branch,
                              .finished = true,
                              .finish_reason = reason});
      }
      unreported.back().group_finished = true;
      memory.erase_group(id);
    }
  }

  // Who has been passed over often enough goes before all that have not, from now on.
  void age_line() {
    in_line_.clear();
    for (auto& [id, group] : groups()) {
      if (group.state != GroupState::kRunning) {
        in_line_.insert(id);
        const bool ages = !group.aged && (config_.policy.by_priority && config_.policy.ageing_steps > 0 &&
                                          group.num_passed_over >= config_.policy.ageing_steps);
        group.aged = group.aged || ages;
        num_aged += ages ? 1 : 0;
      }
    }
  }

  [[nodiscard]] std::optional<GroupId> first_of_all() const {
    std::optional<GroupId> first;
    for (const GroupId id : memory.groups | std::views::keys) {
      first = !first || goes_before(id, *first) ? id : *first;
    }
    return first;
  }

  std::set<GroupId> in_line_;  // since before this plan
};

}  // namespace fastpaged::test
