// What must hold of a Scheduler between any two calls.
#include <algorithm>
#include <source_location>
#include <string>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

void check_holders(const BlockPool& pool, const std::vector<std::int32_t>& holders) {
  for (BlockId block = 0; block < pool.num_blocks(); ++block) {
    if (holders[block] != pool.ref_count(block)) {
      throw_invariant("Scheduler: block " + std::to_string(block) + " of the " + pool.name() + " pool has " +
                          std::to_string(pool.ref_count(block)) + " references, and " + std::to_string(holders[block]) +
                          " tables hold it",
                      std::source_location::current());
    }
  }
}

bool is_branch_of(const SequenceGroup& group, const Sequence* sequence) {
  return std::any_of(group.sequences.begin(), group.sequences.end(),
                     [&](const auto& branch) { return branch.get() == sequence; });
}

}  // namespace

void Scheduler::check_invariants() const {
  invariant(all_released(), kRefusedRelease);
  kv_cache_.check_invariants();
  waiting_.check_invariants();
  running_.check_invariants();
  swapped_.check_invariants();
  pins_.check_invariants();
  invariant(waiting_.size() + running_.size() + swapped_.size() == groups_.size(),
            "Scheduler: a group is in no queue, or in two");
  for (const auto& [id, group] : groups_) {
    invariant(group.id == id, "Scheduler: a group under another's id");
    check_group(group);
  }
  check_deadlines();
  for (const ForcedPreemption& forced : forced_) {
    invariant(groups_.contains(forced.id), "Scheduler: told to preempt a group that has gone");
  }
  for (const PlannedSequence& planned : plan_.sequences()) {
    invariant(planned.group == nullptr || running_.contains(*planned.group), "Scheduler: planned, but not running");
    invariant(planned.group == nullptr || planned.group->find(planned.what.sequence_id) == planned.sequence,
              "Scheduler: a plan points to a sequence that has gone");
  }
  check_rows();
  check_blocks();
  invariant(references_add_up(), "Scheduler: tables list more blocks, or fewer, than are referred to");
}

void Scheduler::check_deadlines() const {
  std::size_t num_deadlines = 0;
  std::size_t num_queue_deadlines = 0;
  for (const auto& [id, group] : groups_) {
    if (group.deadline != kNoDeadline) {
      ++num_deadlines;
      invariant(deadlines_.contains({group.deadline, group.arrival, id}), "Scheduler: lost a deadline");
    }
    if (group.queue_deadline != kNoDeadline && !group.was_let_in) {
      ++num_queue_deadlines;
      invariant(queue_deadlines_.contains({group.queue_deadline, group.arrival, id}), "Scheduler: lost a time-out");
    }
  }
  invariant(deadlines_.size() == num_deadlines && queue_deadlines_.size() == num_queue_deadlines,
            "Scheduler: a deadline of a group that has gone, or was let in");
}

void Scheduler::check_rows() const {
  std::int32_t num_rows = 0;
  std::int32_t num_results = 0;
  for (const PlannedSequence& planned : plan_.sequences()) {
    num_rows += planned.what.num_rows();
    num_results += planned.what.num_results();
    invariant((planned.what.num_draws > 0) == planned.what.samples, "Scheduler: samples without a draw");
    invariant(planned.group == nullptr || !planned.what.samples || planned.what.num_draws == planned.group->num_draws(),
              "Scheduler: a plan draws other samples than its request wants");
    invariant(
        planned.sequence == nullptr || planned.what.num_scores == planned.sequence->num_scores(planned.what.num_tokens),
        "Scheduler: a plan scores other tokens than those that need it");
  }
  invariant(plan_.spent() || (num_rows == plan_.num_rows() && num_results == plan_.num_results()),
            "Scheduler: lost count of a plan's rows or results");
  invariant(config_.max_num_rows == 0 || num_rows <= config_.max_num_rows, "Scheduler: more rows than max_num_rows");
}

void Scheduler::check_group(const SequenceGroup& group) const {
  invariant(queue_of(group.state).contains(group), "Scheduler: a group is not in the queue of its state");
  invariant(!group.sequences.empty(), "Scheduler: a group without sequences");
  invariant(group.num_draws() == 1 || group.num_sequences() == 1, "Scheduler: samples that parted are still reserved");
  const BlockPool& tier = group.state == GroupState::kSwapped ? kv_cache_.host_pool() : kv_cache_.device_pool();
  if (group.beams != nullptr) {
    check_beams(group);
  }
  for (const auto& sequence : group.sequences) {
    sequence->check_invariants(config_.block_size);
    invariant(sequence->num_uncomputed_tokens() > 0, "Scheduler: nothing left to compute, yet not ended");
    invariant(sequence->num_tokens() < config_.max_model_len && sequence->num_output_tokens() < group.stop.max_tokens,
              "Scheduler: over its length, yet not ended");
    invariant(
        group.state != GroupState::kWaiting || (sequence->table().size() == 0 && sequence->num_computed_tokens() == 0),
        "Scheduler: a waiting group holds blocks");
    invariant(sequence->rebuild().from != nullptr || &sequence->table().pool() == &tier,
              "Scheduler: a group holds blocks of the wrong tier");
    if (const Sequence* parent = sequence->rebuild().from; parent != nullptr) {
      invariant(is_branch_of(group, parent), "Scheduler: a branch waits for one that has gone");
      invariant(sequence->rebuild().num_tokens > std::max(parent->num_computed_tokens(), parent->rebuild().num_tokens),
                "Scheduler: a branch waits for what is there");
    }
  }
}

void Scheduler::check_beams(const SequenceGroup& group) {
  const BeamSearch& beams = *group.beams;
  beams.check_invariants();
  invariant(beams.num_live() == group.num_sequences(), "Scheduler: lost count of the live beams");
  invariant(!group.search_is_over(), "Scheduler: a search is over and has not ended");
  invariant(!group.awaits_stops || beams.has_stop_strings(), "Scheduler: waits for stop strings that nobody looks for");
  invariant(group.num_counted() == beams.width(), "Scheduler: beams do not count as their width");
  for (const auto& sequence : group.sequences) {
    invariant(sequence->num_output_tokens() == beams.length(), "Scheduler: a beam is not as long as the others");
  }
}

void Scheduler::check_blocks() const {
  std::vector<std::int32_t> on_device(kv_cache_.num_blocks(), 0);
  std::vector<std::int32_t> on_host(kv_cache_.host_pool().num_blocks(), 0);
  for (const auto& [id, group] : groups_) {
    for (const auto& sequence : group.sequences) {
      for (const BlockId block : sequence->table().blocks()) {
        ++(group.state == GroupState::kSwapped ? on_host : on_device).at(block);
      }
    }
  }
  for (const BlockTable* table : pins_.tables()) {
    for (const BlockId block : table->blocks()) {
      ++on_device.at(block);
    }
  }
  invariant(count_running_sequences() == num_running_sequences_, kLostRunning);
  invariant(num_running_sequences_ <= config_.max_num_seqs, "Scheduler: more running sequences than max_num_seqs");
  check_holders(kv_cache_.device_pool(), on_device);
  check_holders(kv_cache_.host_pool(), on_host);
}

}  // namespace fastpaged
