// What must hold of a Scheduler between any two calls.
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

void Scheduler::check_invariants() const {
  kv_cache_.check_invariants();
  waiting_.check_invariants();
  running_.check_invariants();
  invariant(waiting_.size() + running_.size() == groups_.size(), "Scheduler: a group is in no queue, or in two");
  invariant(waiting_.empty() || running_.empty() || running_.youngest().arrival < waiting_.oldest().arrival,
            "Scheduler: a waiting group is older than a running one");
  for (const auto& [id, group] : groups_) {
    invariant(group.id == id, "Scheduler: a group under another's id");
    check_group(group);
  }
  for (const PlannedSequence& planned : plan_.sequences()) {
    invariant(planned.group == nullptr || running_.contains(*planned.group), "Scheduler: planned, but not running");
  }
  check_blocks();
}

void Scheduler::check_group(const SequenceGroup& group) const {
  const bool running = group.state == GroupState::kRunning;
  invariant((running ? running_ : waiting_).contains(group), "Scheduler: a group is not in the queue of its state");
  for (const Sequence& sequence : group.sequences) {
    sequence.check_invariants(config_.block_size);
    invariant(sequence.num_uncomputed_tokens() > 0, "Scheduler: nothing left to compute, yet not ended");
    invariant(sequence.num_tokens() < config_.max_model_len && sequence.num_output_tokens() < group.stop.max_tokens,
              "Scheduler: over its length, yet not ended");
    invariant(running || (sequence.table().size() == 0 && sequence.num_computed_tokens() == 0),
              "Scheduler: a waiting group holds blocks");
  }
}

void Scheduler::check_blocks() const {
  std::vector<std::int32_t> holders(kv_cache_.num_blocks(), 0);
  std::int64_t num_running_sequences = 0;
  for (const auto& [id, group] : groups_) {
    num_running_sequences += group.state == GroupState::kRunning ? std::ssize(group.sequences) : 0;
    for (const Sequence& sequence : group.sequences) {
      for (const BlockId block : sequence.table().blocks()) {
        ++holders.at(block);
      }
    }
  }
  invariant(num_running_sequences <= config_.max_num_seqs, "Scheduler: more running sequences than max_num_seqs");
  for (BlockId block = 0; block < kv_cache_.num_blocks(); ++block) {
    invariant(holders[block] == kv_cache_.pool().ref_count(block),
              "Scheduler: a block's reference count differs from the tables that hold it");
  }
}

}  // namespace fastpaged
