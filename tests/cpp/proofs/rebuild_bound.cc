#include "proofs/rebuild_bound.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kv_cache/slow_kv_cache.h"

namespace fastpaged::test {

namespace {

bool is_computed(const SequenceGroup& group) {
  return std::all_of(group.sequences.begin(), group.sequences.end(), [](const auto& sequence) {
    return sequence->num_computed_tokens() > 0 && sequence->num_uncomputed_tokens() == 1;
  });
}

}  // namespace

// The blocks of computed tokens: a forgotten plan may have left more, which do not count.
RebuildBound::Held RebuildBound::held_by(const SequenceGroup& group) const {
  std::set<BlockId> blocks;
  for (const auto& sequence : group.sequences) {
    const std::int32_t count = scheduler_->kv_cache().blocks_for(sequence->num_computed_tokens());
    const std::span<const BlockId> of_computed = sequence->table().blocks().first(count);
    blocks.insert(of_computed.begin(), of_computed.end());
  }
  return {std::ssize(blocks), group.state == GroupState::kRunning ? blocks : std::set<BlockId>{}};
}

void RebuildBound::before_schedule(const std::vector<GroupId>& groups) {
  decoding_.clear();
  forget_gone(groups);
  for (const GroupId id : groups) {
    const SequenceGroup& group = scheduler_->group(id);
    if (is_computed(group)) {
      decoding_[id] = held_by(group);
    }
  }
}

void RebuildBound::after_schedule(const std::vector<GroupId>& groups, const SchedulerOutput& plan) {
  forget_gone(groups);
  const std::vector<BlockCopy> copies = one_by_one(plan.copies);
  for (const auto& [id, held] : decoding_) {
    if (std::find(groups.begin(), groups.end(), id) == groups.end()) {
      continue;
    }
    // It was about to decode, perhaps: blocks that its branches had copied on write by then are theirs too.
    const auto begun = std::count_if(copies.begin(), copies.end(), [&](const BlockCopy& copy) {
      return copy.kind == CopyKind::kCopyOnWrite && held.on_device.contains(copy.source);
    });
    if (!is_computed(scheduler_->group(id))) {
      at_most_[id] = held.num_blocks + begun;
    } else if (at_most_.contains(id)) {
      at_most_[id] += begun;  // rebuilt, and swapped out in the middle of its first decode step
    }
  }
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    if (scheduled.samples && at_most_.erase(scheduled.group_id) > 0) {
      num_trees_rebuilt_ += scheduler_->group(scheduled.group_id).num_sequences() > 1 ? 1 : 0;
    }
  }
  for (const auto& [id, most] : at_most_) {
    check(id);
  }
}

void RebuildBound::after_update(const std::vector<GroupId>& groups) {
  forget_gone(groups);
  for (const auto& [id, most] : at_most_) {
    check(id);
  }
}

void RebuildBound::check(GroupId id) const {
  const SequenceGroup& group = scheduler_->group(id);
  std::set<BlockId> blocks;
  for (const auto& sequence : group.sequences) {
    blocks.insert(sequence->table().blocks().begin(), sequence->table().blocks().end());
  }
  CAPTURE(id);
  REQUIRE(std::ssize(blocks) <= at_most_.at(id));
}

void RebuildBound::forget_gone(const std::vector<GroupId>& groups) {
  std::erase_if(at_most_, [&](const auto& entry) {
    return std::find(groups.begin(), groups.end(), entry.first) == groups.end();
  });
}

}  // namespace fastpaged::test
