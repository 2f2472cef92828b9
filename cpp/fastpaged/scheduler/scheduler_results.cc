// What came of a step, and what it does to those who took part.
#include <algorithm>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

void end(SequenceEvent& event, FinishReason reason) {
  event.finished = true;
  event.finish_reason = reason;
}

}  // namespace

std::vector<SequenceEvent> Scheduler::update(const SchedulerOutput& plan, const SampledRows& results) {
  plan_.require_current(plan);
  require(std::cmp_equal(results.tokens.size(), plan_.num_results()), [&] {
    return "tokens must have one entry per score and draw: the plan has " + std::to_string(plan_.num_results()) +
           ", got " + std::to_string(results.tokens.size());
  });
  require_candidates(results);
  costs_ended_before_ = std::exchange(costs_of_ended_, {});
  std::vector<SequenceEvent> events = std::exchange(ended_, {});
  events.reserve(events.size() + results.tokens.size());
  std::int32_t next_result = 0;
  for (const PlannedSequence& planned : plan_.sequences()) {
    const std::int32_t first_result = next_result;
    next_result += planned.what.num_results();
    if (planned.group == nullptr || is_broken(planned.group->id)) {
      continue;
    }
    const GroupId id = planned.group->id;
    const std::size_t num_events = events.size();
    try {
      take_planned(planned, results, first_result, events);
    } catch (const std::logic_error& error) {  // the others have their results all the same
      events.resize(num_events);
      beam_rows_.clear();
      broken_.push_back({id, error.what()});
    }
  }
  plan_.spend();
  if (!broken_.empty() || !all_released()) {
    spared_events_ = std::move(events);
    throw_invariant(broken_.empty() ? std::string(kRefusedRelease)
                                    : "group " + std::to_string(broken_.front().id) + ": " + broken_.front().what,
                    std::source_location::current());
  }
  return events;
}

// What one sequence of the plan has computed.
void Scheduler::take_planned(const PlannedSequence& planned, const SampledRows& results, std::int32_t first_result,
                             std::vector<SequenceEvent>& events) {
  const std::int32_t num_results = planned.what.num_results();
  const std::int32_t num_recomputed = planned.sequence->advance(planned.what.num_tokens);
  planned.group->num_tokens_recomputed += num_recomputed;
  stats_.num_tokens_recomputed += num_recomputed;
  if (std::ranges::all_of(results.tokens.subspan(first_result, num_results), &SampledToken::ok)) {
    publish(*planned.group, *planned.sequence);  // before it shares its blocks, or gives them back
  }
  if (planned.group->num_sequences() > 1) {
    planned.group->take_over_from(*planned.sequence, kv_cache_);
  }
  if (num_results > 0 && planned.group->beams != nullptr) {
    take_candidates(planned, results, first_result, events);
  } else if (num_results > 0) {
    take_results(planned, results.tokens.subspan(first_result, num_results), first_result, events);
  }
}

// An event per draw; if there is none, one with the scores. The scores are the first one's.
void Scheduler::take_results(const PlannedSequence& planned, std::span<const SampledToken> results,
                             std::int32_t first_result, std::vector<SequenceEvent>& events) {
  SequenceGroup& group = *planned.group;
  Sequence& sequence = *planned.sequence;
  const std::int32_t num_scores = planned.what.num_scores;
  const bool scored = std::ranges::all_of(results.first(num_scores), &SampledToken::ok);
  const std::size_t first_event = events.size();
  for (std::int32_t i = 0; i < std::max(1, planned.what.num_draws); ++i) {
    SequenceEvent& event = events.emplace_back();
    event.group_id = group.id;
    event.sequence_id = i == 0 ? sequence.id() : next_sequence_id_++;
    event.parent_id = sequence.id();
    event.branch = i == 0 ? sequence.branch() : i;
    event.score_row = first_result;
    event.num_scores = scored && i == 0 ? num_scores : 0;
    event.sample_row = first_result + num_scores + i;
    if (!scored || (planned.what.samples && !results[num_scores + i].ok)) {
      end(event, FinishReason::kError);
    } else if (planned.what.samples) {
      take_token(group, sequence, results[num_scores + i].token_id, event);
    }
  }

  const std::span<SequenceEvent> own = std::span(events).subspan(first_event);
  if (own.size() > 1) {
    part_samples(group, sequence, own.subspan(1));
  }
  if (own.front().has_token) {
    sequence.append(own.front().token_id);
  }
  if (own.front().finished) {
    if (!std::ranges::all_of(results, &SampledToken::ok)) {
      kv_cache_.forget_own(sequence.table());
    }
    own.back().group_finished = remove_sequence(group, sequence);  // so all have ended, these at once
  }
}

// What the token means for a sequence that it is not appended to yet.
void Scheduler::take_token(const SequenceGroup& group, const Sequence& sequence, TokenId token,
                           SequenceEvent& event) const {
  const StopConditions& stop = group.stop;
  event.has_token = true;
  event.token_id = token;
  if (std::binary_search(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), token)) {
    end(event, FinishReason::kStop);
  } else if (sequence.num_output_tokens() + 1 >= stop.max_tokens ||
             sequence.num_tokens() + 1 >= config_.max_model_len) {
    end(event, FinishReason::kLength);
  }
}

// Makes branches of all samples but the first, so far as they go on. `parent` has not its own token yet.
void Scheduler::part_samples(SequenceGroup& group, const Sequence& parent, std::span<const SequenceEvent> others) {
  const std::int64_t num_counted = group.num_counted();
  const std::int32_t num_blocks = kv_cache_.blocks_for(parent.num_computed_tokens());
  for (const SequenceEvent& event : others) {
    if (!event.finished) {
      group.sequences.push_back(std::make_unique<Sequence>(parent.fork(event.sequence_id, event.branch, num_blocks)));
      group.sequences.back()->append(event.token_id);
    }
  }
  group.num_branches = group.num_reserved;
  group.num_reserved = 1;
  num_running_sequences_ -= num_counted - group.num_counted();
}

}  // namespace fastpaged
