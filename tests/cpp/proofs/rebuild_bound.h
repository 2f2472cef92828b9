// RebuildBound watches a scheduler: a preempted group of branches, recomputed, never holds more blocks than it held
// when it was preempted, until it goes on decoding.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::test {

class RebuildBound {
 public:
  explicit RebuildBound(const Scheduler& scheduler) : scheduler_(&scheduler) {}

  // groups: those that are unfinished, each time.
  void before_schedule(const std::vector<GroupId>& groups);
  void after_schedule(const std::vector<GroupId>& groups, const SchedulerOutput& plan);
  void after_update(const std::vector<GroupId>& groups);

  [[nodiscard]] std::int64_t num_trees_rebuilt() const { return num_trees_rebuilt_; }

 private:
  struct Held {
    std::int64_t num_blocks = 0;
    std::set<BlockId> on_device;
  };
  [[nodiscard]] Held held_by(const SequenceGroup& group) const;
  void check(GroupId id) const;
  void forget_gone(const std::vector<GroupId>& groups);

  const Scheduler* scheduler_;
  std::map<GroupId, Held> decoding_;         // before the schedule() in progress
  std::map<GroupId, std::int64_t> at_most_;  // of groups that are being rebuilt
  std::int64_t num_trees_rebuilt_ = 0;
};

}  // namespace fastpaged::test
