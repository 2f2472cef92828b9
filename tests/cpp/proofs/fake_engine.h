// FakeEngine: the real scheduler, the real batch and the real copies around a model that computes nothing. It writes
// into each KV slot a hash of the history of the token there, and looks whether every token that counts as computed, of
// every request in any state, whoever computed it, is still where its block table says, on the device or on the host.
// What preemption and sharing cost, it counts for itself.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"
#include "proofs/cache_oracle.h"
#include "proofs/hashed_kv.h"
#include "proofs/plain_requests.h"
#include "proofs/rebuild_bound.h"

namespace fastpaged::test {

class FakeEngine {
 public:
  FakeEngine(const SchedulerConfig& config, int num_layers);

  void add(const NewRequest& request);
  void abort(GroupId id);
  void finish(GroupId id, SequenceId branch);
  [[nodiscard]] bool may_fork(GroupId id) const;
  void fork(GroupId id, SequenceId parent);
  void preempt(GroupId id, PreemptionMode mode);
  void reset();
  // Prefixes that are kept; refused, and nothing changed, beyond the budget.
  void pin(PinId id, const std::vector<TokenId>& tokens, const std::string& root);
  void unpin(PinId id);
  void reset_prefix_cache();

  // A step, in parts: schedule, copies, compute, update.
  SchedulerOutput schedule() { return schedule(now_); }
  SchedulerOutput schedule(Nanoseconds now);
  void copy(std::span<const BlockCopy> copies);  // the first ones of the plan, or all
  void spoil_free_blocks() { kv_.spoil_free_blocks(); }
  void compute(const SchedulerOutput& plan);
  void update(const SchedulerOutput& plan, const SampledRows& results);
  [[nodiscard]] bool all_of_it_is_here(const SchedulerOutput& plan) const;  // nothing planned has been aborted since

  [[nodiscard]] const Scheduler& scheduler() const { return scheduler_; }
  [[nodiscard]] std::vector<GroupId> groups() const;
  [[nodiscard]] std::vector<SequenceId> branches(GroupId id) const;
  void check_all_given_back();

  struct Counts {
    std::int64_t slots_checked = 0;
    std::int64_t num_found_again = 0;  // requests that came in with tokens found in the prefix cache
    std::int64_t num_refused_pins = 0;
    std::int64_t pool_ends = 0;  // sequences that ended because the pool could not hold more
    std::int64_t expired = 0;    // and those that ended by their time
    SchedulerStats stats;        // as it must be
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }
  [[nodiscard]] Nanoseconds now() const { return now_; }  // of the last step
  [[nodiscard]] const CacheOracle& cache() const { return cache_; }
  [[nodiscard]] CacheEvents::Taken take_cache_events() { return scheduler_.take_cache_events(); }
  [[nodiscard]] const PlainRequests& requests() const { return requests_; }
  [[nodiscard]] std::int64_t num_trees_rebuilt() const { return rebuild_bound_.num_trees_rebuilt(); }

 private:
  void check_context(const Batch& batch, std::int32_t row, const ScheduledSequence& scheduled);
  void write(const Batch& batch, std::int32_t row, const ScheduledSequence& scheduled);
  void count(const SchedulerOutput& plan);
  void note_doubt();
  [[nodiscard]] std::span<const SequenceEvent> beyond_unreported(std::span<const SequenceEvent> events) const;
  void hear(std::span<const SequenceEvent> events, const SampledRows& results, bool while_planning);
  void check();
  void check_history();
  void check_slot(const BlockPool& pool, BlockId block, const PlainBranch& branch, std::int32_t position);

  Scheduler scheduler_;
  BatchBuilder builder_;
  HashedKV kv_;
  CacheOracle cache_;
  RebuildBound rebuild_bound_;
  PlainRequests requests_;
  std::vector<std::pair<GroupId, SequenceId>> unreported_;  // ended while planning
  std::vector<BlockCopy> to_copy_;                          // of the last plan, still
  std::set<PrefixCache::Node> in_doubt_;                    // where to
  Nanoseconds now_ = 0;
  Counts counts_;
};

}  // namespace fastpaged::test
