// Scheduler: continuous batching. Each step is planned afresh as {sequence: num_tokens} under a token budget;
// prefill, chunked prefill, decode and recomputation are the same case.
//
//   plan   = schedule()            which tokens are computed now; grows block tables, preempts when it must
//   events = update(plan, tokens)  what came of it; frees what has ended
//
// FCFS by arrival. Running sequences that decode come first, then running prefills, then waiting groups, admitted in
// order (the first that does not fit stops admission). A group is let in when all its known tokens fit beside those of
// the running groups; blocks are taken only for the tokens of this step. When a running group cannot grow, the youngest
// running group is preempted whole and waits, in arrival order, to be recomputed.
//
// Invariants (check_invariants), beside those of the parts:
//   1. a group is either running or waiting; every running group is older than every waiting one;
//   2. waiting groups hold no blocks; every block's reference count is the number of tables that hold it;
//   3. between steps each sequence has an uncomputed token and is below its limits.
// Liveness: while anything is unfinished, schedule() schedules at least one token or ends at least one request. The
// oldest group is never preempted, and every step computes a token of it or an output token of another: n requests are
// done after at most sum(prompt + 2 * max_tokens + 1) steps.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "fastpaged/scheduler/request_queue.h"
#include "fastpaged/scheduler/scheduler_output.h"
#include "fastpaged/scheduler/sequence_group.h"
#include "fastpaged/scheduler/step_plan.h"

namespace fastpaged {

struct SchedulerConfig {
  std::int32_t num_blocks = 0;
  std::int32_t block_size = 16;
  std::int32_t max_num_seqs = 256;
  std::int32_t max_num_batched_tokens = 2048;
  std::int32_t max_model_len = 0;                 // >= 2: a prompt token and an answer; may exceed the pool
  std::int32_t long_prefill_token_threshold = 0;  // most tokens of one sequence in one step; 0 is no limit
};

struct NewRequest {
  GroupId id = 0;
  std::vector<TokenId> prompt_token_ids = {};
  SamplingParams sampling = {};
  StopConditions stop = {};
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);  // throws std::invalid_argument naming the field
  // Throws std::invalid_argument: empty prompt, prompt above max_model_len - 1 or above what the pool can hold, a
  // negative token, id in use (until the event of its end is out), max_tokens < 1, sampling params out of range.
  void add(NewRequest request);
  // Ends a request in any state and frees its blocks at once. False if it is not (or no longer) here.
  bool abort(GroupId id);

  // A plan that was never updated is forgotten: its tokens are planned anew.
  [[nodiscard]] SchedulerOutput schedule();
  // tokens: one per sampling sequence, in plan order. Events of plan.ended come first. A request aborted since
  // schedule() is passed over. A stop token is appended and reported like any other.
  // Throws std::invalid_argument, and changes nothing, if the count differs from the plan's or the plan is not the
  // last.
  std::vector<SequenceEvent> update(const SchedulerOutput& plan, std::span<const SampledToken> tokens);

  [[nodiscard]] bool has_unfinished() const { return !groups_.empty() || !ended_.empty(); }
  [[nodiscard]] std::int32_t num_waiting() const { return static_cast<std::int32_t>(waiting_.size()); }
  [[nodiscard]] std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  [[nodiscard]] const SchedulerConfig& config() const { return config_; }
  [[nodiscard]] const KVCacheManager& kv_cache() const { return kv_cache_; }
  [[nodiscard]] const SequenceGroup& group(GroupId id) const;  // throws std::invalid_argument
  [[nodiscard]] const StepPlan& plan() const { return plan_; }
  void check_invariants() const;

 private:
  void plan_running(bool decodes);
  void admit_waiting();
  // Tokens of this sequence that the step may compute.
  [[nodiscard]] std::int32_t chunk_of(const Sequence& sequence) const;
  // Grows the sequence's table for num_tokens more. False: its group had to go instead (and may be destroyed).
  bool make_room(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens);
  // Blocks that the known tokens of this group still lack.
  [[nodiscard]] std::int64_t missing_blocks(const SequenceGroup& group) const;
  void preempt(SequenceGroup& group);
  void remove(SequenceGroup& group);  // destroys it

  SequenceEvent take_token(const PlannedSequence& planned, const SampledToken& token, std::int32_t row);
  void check_group(const SequenceGroup& group) const;
  void check_blocks() const;

  SchedulerConfig config_;
  KVCacheManager kv_cache_;
  std::unordered_map<GroupId, SequenceGroup> groups_;  // after kv_cache_: their tables give blocks back to it
  RequestQueue waiting_;
  RequestQueue running_;
  StepPlan plan_;
  std::vector<GroupId> preempted_;    // by the plan in the making
  std::vector<SequenceEvent> ended_;  // while planning, not reported yet
  std::int64_t next_arrival_ = 0;
  SequenceId next_sequence_id_ = 0;
};

}  // namespace fastpaged
