// StepPlan: the scheduler's own side of a SchedulerOutput. It is drawn up under a budget of tokens and one of rows
// of logits beyond each sequence's own, may lose groups while being drawn up (preempted) and afterwards (aborted), and
// remembers which objects the plan's ids stand for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/scheduler/scheduler_output.h"
#include "fastpaged/scheduler/sequence_group.h"

namespace fastpaged {

struct PlannedSequence {
  ScheduledSequence what;
  SequenceGroup* group = nullptr;  // both null once the sequence has gone
  Sequence* sequence = nullptr;
  TokenId first_id = 0;  // the first of its tokens in this step
  bool is_cut = false;   // of a prompt that has only a share of the step
};

class StepPlan {
 public:
  void start(std::int32_t budget, std::int32_t spare_rows);   // a new, empty plan
  [[nodiscard]] std::uint64_t step() const { return step_; }  // how many plans there were, this one included
  [[nodiscard]] std::int32_t budget() const { return budget_; }
  [[nodiscard]] std::int32_t spare_rows() const { return spare_rows_; }  // that may be taken beside one's own
  // REQUIRES: num_tokens <= budget(), and the rows that the sequence needs for them <= 1 + spare_rows().
  void add(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens, bool is_cut = false);
  // The same in place of what is planned of this sequence, if anything is.
  void add_or_grow(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens, bool is_cut);
  void take_out(const SequenceGroup& group);  // as if never planned; its budgets come back

  // What somebody has of the plan so far.
  struct Share {
    std::int32_t num_tokens = 0;
    std::int32_t num_cut_tokens = 0;
    std::int32_t num_spare_rows = 0;
  };
  [[nodiscard]] Share share_of(const SequenceGroup& group) const;
  [[nodiscard]] Share share_of(const Sequence& sequence) const;
  [[nodiscard]] std::int32_t num_cut_tokens() const { return num_cut_tokens_; }

  [[nodiscard]] SchedulerOutput output() const;
  // Throws std::invalid_argument unless `plan` is this one and not spent yet.
  void require_current(const SchedulerOutput& plan) const;
  [[nodiscard]] bool spent() const { return spent_; }

  [[nodiscard]] std::span<const PlannedSequence> sequences() const { return sequences_; }
  [[nodiscard]] std::int32_t num_rows() const { return num_rows_; }
  [[nodiscard]] std::int32_t num_results() const { return num_results_; }
  void forget(const Sequence& sequence);  // keeps its place, its rows and results, not its pointers
  void spend();                           // update() is done with it

 private:
  void count(const PlannedSequence& planned, std::int32_t sign);

  std::uint64_t step_ = 0;
  bool spent_ = true;
  std::int32_t budget_ = 0;
  std::int32_t spare_rows_ = 0;
  std::int32_t num_tokens_ = 0;
  std::int32_t num_cut_tokens_ = 0;
  std::int32_t num_samples_ = 0;
  std::int32_t num_rows_ = 0;
  std::int32_t num_results_ = 0;
  std::vector<PlannedSequence> sequences_;
};

}  // namespace fastpaged
