#include "fastpaged/scheduler/step_plan.h"

#include <algorithm>
#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

// A sequence has a row of its own, needed or not.
std::int32_t rows_beyond_its_own(const ScheduledSequence& what) {
  return std::max(what.num_rows() - 1, 0);
}

PlannedSequence planned(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens, bool is_cut) {
  invariant(num_tokens > 0, "StepPlan: nothing planned");
  const bool samples = num_tokens == sequence.num_uncomputed_tokens();
  const ScheduledSequence what = {.group_id = group.id,
                                  .sequence_id = sequence.id(),
                                  .first_token = sequence.num_computed_tokens(),
                                  .num_tokens = num_tokens,
                                  .samples = samples,
                                  .num_scores = sequence.num_scores(num_tokens),
                                  .num_draws = samples ? group.num_draws() : 0};
  return {what, &group, &sequence, sequence.token_ids()[what.first_token], is_cut};
}

void add_to(StepPlan::Share& share, const PlannedSequence& planned) {
  share.num_tokens += planned.what.num_tokens;
  share.num_cut_tokens += planned.is_cut ? planned.what.num_tokens : 0;
  share.num_spare_rows += rows_beyond_its_own(planned.what);
}

}  // namespace

void StepPlan::start(std::int32_t budget, std::int32_t spare_rows) {
  ++step_;
  spent_ = false;
  budget_ = budget;
  spare_rows_ = spare_rows;
  num_tokens_ = 0;
  num_cut_tokens_ = 0;
  num_samples_ = 0;
  num_rows_ = 0;
  num_results_ = 0;
  sequences_.clear();
}

void StepPlan::add(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens, bool is_cut) {
  sequences_.push_back(planned(group, sequence, num_tokens, is_cut));
  count(sequences_.back(), 1);
}

void StepPlan::add_or_grow(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens, bool is_cut) {
  const auto place = std::ranges::find(sequences_, &sequence, &PlannedSequence::sequence);
  if (place == sequences_.end()) {
    add(group, sequence, num_tokens, is_cut);
    return;
  }
  count(*place, -1);
  *place = planned(group, sequence, num_tokens, is_cut);
  count(*place, 1);
}

void StepPlan::count(const PlannedSequence& planned, std::int32_t sign) {
  budget_ -= sign * planned.what.num_tokens;
  spare_rows_ -= sign * rows_beyond_its_own(planned.what);
  invariant(budget_ >= 0, "StepPlan: over the token budget");
  invariant(spare_rows_ >= 0, "StepPlan: over the row budget");
  num_tokens_ += sign * planned.what.num_tokens;
  num_cut_tokens_ += planned.is_cut ? sign * planned.what.num_tokens : 0;
  num_samples_ += planned.what.samples ? sign : 0;
  num_rows_ += sign * planned.what.num_rows();
  num_results_ += sign * planned.what.num_results();
}

void StepPlan::take_out(const SequenceGroup& group) {
  std::erase_if(sequences_, [&](const PlannedSequence& planned) {
    if (planned.group != &group) {
      return false;
    }
    count(planned, -1);
    return true;
  });
}

StepPlan::Share StepPlan::share_of(const SequenceGroup& group) const {
  Share share;
  for (const PlannedSequence& planned : sequences_) {
    if (planned.group == &group) {
      add_to(share, planned);
    }
  }
  return share;
}

StepPlan::Share StepPlan::share_of(const Sequence& sequence) const {
  Share share;
  const auto place = std::ranges::find(sequences_, &sequence, &PlannedSequence::sequence);
  if (place != sequences_.end()) {
    add_to(share, *place);
  }
  return share;
}

SchedulerOutput StepPlan::output() const {
  SchedulerOutput output;
  output.step = step_;
  output.num_tokens = num_tokens_;
  output.num_samples = num_samples_;
  output.num_rows = num_rows_;
  output.num_results = num_results_;
  output.scheduled.reserve(sequences_.size());
  for (const PlannedSequence& planned : sequences_) {
    output.scheduled.push_back(planned.what);
  }
  return output;
}

void StepPlan::require_current(const SchedulerOutput& plan) const {
  require(plan.step == step_ && !spent_, [&] {
    return "plan must be the last one and not updated yet: got step " + std::to_string(plan.step) + ", the last is " +
           std::to_string(step_) + (spent_ ? " (updated)" : "");
  });
  const bool same = std::equal(plan.scheduled.begin(), plan.scheduled.end(), sequences_.begin(), sequences_.end(),
                               [](const ScheduledSequence& a, const PlannedSequence& b) { return a == b.what; });
  require(same,
          [&] { return "plan of step " + std::to_string(plan.step) + " was made by another scheduler or changed"; });
}

void StepPlan::forget(const Sequence& sequence) {
  for (PlannedSequence& planned : sequences_) {
    if (planned.sequence == &sequence) {
      planned.group = nullptr;
      planned.sequence = nullptr;
    }
  }
}

void StepPlan::spend() {
  spent_ = true;
  sequences_.clear();
}

}  // namespace fastpaged
