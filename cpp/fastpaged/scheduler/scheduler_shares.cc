// How prompts share a step: those that it completes, and those that it cannot.
//
// A prompt is short where no more than policy.prefill_share of its tokens are left. Whatever is short and fits comes
// whole. All others, cut to what this step can do of them, have prefill_share tokens together, in equal parts: one for
// each that runs, and one for the line, if there is a next in it. A part is a token at least. Of more prompts than
// there are tokens, the first have one each, or none would get anywhere; the line still has the last.
//   1. those that run, in order, each a part at most, and all at most half of what decodes have left of the budget;
//   2. those that are let in, each a part at most of what is left; nobody comes in who would not compute a token;
//   3. what is left of the share goes to them in order, or of the budget, if this step decodes nothing. For this nobody
//      is preempted.
// So how long a prompt takes depends on how many others are cut, not on how much is left of them.
#include <algorithm>
#include <limits>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

constexpr std::int32_t kNoLimit = std::numeric_limits<std::int32_t>::max();

}  // namespace

// Of one sequence, whatever others are to have.
std::int32_t Scheduler::most_tokens_at_once() const {
  const std::int32_t threshold = config_.policy.long_prefill_token_threshold;
  return threshold > 0 ? threshold : kNoLimit;
}

void Scheduler::share_among_running() {
  if (!shares_prefills() || prefills_.empty() || plan_.budget() == 0) {
    return;
  }
  const Limits limits = plan_limits();
  const auto num_cut = static_cast<std::int32_t>(std::ranges::count_if(prefills_, [&](const SequenceGroup* group) {
    return group->state == GroupState::kRunning && std::ranges::any_of(group->sequences, [&](const auto& sequence) {
             return chunk_of(*group, *sequence, limits).is_cut;
           });
  }));
  const std::int32_t share = config_.policy.prefill_share;
  const std::int32_t half = plan_.budget() / 2;
  const std::int32_t num_next = next_in_line() == nullptr ? 0 : 1;
  if (num_cut > 0) {
    cut_part_ = std::max(1, std::min(share / (num_cut + num_next), half / num_cut));
  }
  cut_limit_ = std::max(1, std::min(share - num_next * std::min(cut_part_, share / 2), half));
}

void Scheduler::share_among_line() {
  cut_limit_ = shares_prefills() ? config_.policy.prefill_share : kNoLimit;
}

// Until it is known who is cut: whoever is, is the only one.
void Scheduler::start_shares() {
  share_among_line();
  cut_part_ = cut_limit_;
}

Scheduler::Limits Scheduler::plan_limits() const {
  return {.budget = plan_.budget(), .cut = cut_limit_ - plan_.num_cut_tokens(), .spare_rows = plan_.spare_rows()};
}

// How much of a sequence is computed within these limits.
Scheduler::Chunk Scheduler::chunk_of(const SequenceGroup& group, const Sequence& sequence, const Limits& limits) const {
  const std::int32_t wanted = group.num_prefill_tokens(sequence);
  if (wanted == 0 || (!config_.policy.chunked_prefill && wanted > limits.budget)) {
    return {};
  }
  const std::int32_t allowed = std::min({wanted, limits.budget, most_tokens_at_once()});
  const std::int32_t num_tokens = sequence.most_tokens(allowed, 1 + std::int64_t{limits.spare_rows});
  if (!shares_prefills() || (num_tokens == wanted && wanted <= config_.policy.prefill_share)) {
    return {.num_tokens = num_tokens, .is_cut = false};
  }
  return {.num_tokens = std::min(num_tokens, limits.cut), .is_cut = true};
}

// Whether a group that comes in has what it must compute at once: all branches' tokens, if it decodes; its whole
// prompt, where none is chunked; or a token, if that is more than nothing by its share.
bool Scheduler::fits_plan(const SequenceGroup& group, const Limits& limits) const {
  if (group.decodes() || !config_.policy.chunked_prefill) {
    std::int64_t num_tokens = 0;
    for (const auto& sequence : group.sequences) {
      num_tokens += group.decodes() ? 1 : group.num_prefill_tokens(*sequence);
    }
    return num_tokens - found_.num_tokens <= limits.budget;
  }
  if (!shares_prefills() || limits.cut > 0) {
    return limits.budget > 0;
  }
  for (std::size_t i = 0; i < group.sequences.size(); ++i) {
    const Sequence& sequence = *group.sequences[i];
    const PrefixMatch& match = found_.matches[i];  // of which the whole blocks are certain
    const std::int32_t wanted = group.num_prefill_tokens(sequence) - (match.num_tokens - match.num_partial_tokens);
    if (wanted > 0) {
      return wanted <= std::min({limits.budget, config_.policy.prefill_share, most_tokens_at_once()}) &&
             sequence.num_rows(sequence.num_uncomputed_tokens()) <= 1 + std::int64_t{limits.spare_rows};
    }
  }
  return true;
}

// Whoever goes on by less than it could.
void Scheduler::note_cut(SequenceGroup& group) {
  if (cut_.empty() || cut_.back() != &group) {
    cut_.push_back(&group);
  }
}

void Scheduler::hand_out_rest() {
  if (cut_.empty()) {
    return;
  }
  const auto decodes = [](const PlannedSequence& planned) { return planned.group->decodes(); };
  const bool shares = std::ranges::any_of(plan_.sequences(), decodes);
  std::ranges::sort(cut_, [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  for (SequenceGroup* group : cut_) {
    for (const auto& sequence : group->sequences) {
      hand_out_rest(*group, *sequence, shares);
    }
  }
  cut_.clear();
}

// More for a sequence that may have been planned already.
void Scheduler::hand_out_rest(SequenceGroup& group, Sequence& sequence, bool shares) {
  Limits limits = plan_limits();
  const StepPlan::Share planned = plan_.share_of(sequence);
  limits.budget += planned.num_tokens;
  limits.spare_rows += planned.num_spare_rows;
  limits.cut = shares ? limits.cut + planned.num_cut_tokens : limits.budget;
  const auto [num_tokens, is_cut] = chunk_of(group, sequence, limits);
  if (num_tokens > planned.num_tokens &&
      kv_cache_.reserve(sequence.table(), sequence.num_computed_tokens(), num_tokens)) {
    plan_.add_or_grow(group, sequence, num_tokens, is_cut);
  }
}

}  // namespace fastpaged
