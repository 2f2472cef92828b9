// Groups with beams: how they grow, and how they end.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

std::int32_t rank_of(const SequenceGroup& group, const Sequence& sequence) {
  const auto place = std::ranges::find_if(group.sequences, [&](const auto& beam) { return beam.get() == &sequence; });
  return static_cast<std::int32_t>(place - group.sequences.begin());
}

}  // namespace

void Scheduler::require_candidates(const SampledRows& results) const {
  if (results.top_offsets.size() == results.tokens.size() + 1) {
    return;
  }
  const bool needed = std::ranges::any_of(plan_.sequences(), [](const PlannedSequence& planned) {
    return planned.what.samples && planned.group != nullptr && planned.group->beams != nullptr;
  });
  require(!needed, [&] {
    return "top_offsets must have one entry more than tokens = " + std::to_string(results.tokens.size()) +
           " where there are beams, got " + std::to_string(results.top_offsets.size());
  });
}

// The last of a group's live beams has them all grow: they sample in the same step, in order of rank.
void Scheduler::take_candidates(const PlannedSequence& planned, const SampledRows& results, std::int32_t first_result,
                                std::vector<SequenceEvent>& events) {
  SequenceGroup& group = *planned.group;
  const std::int32_t num_scores = planned.what.num_scores;
  const auto own = results.tokens.subspan(first_result, planned.what.num_results());
  const bool scored = std::ranges::all_of(own.first(num_scores), &SampledToken::ok);
  const bool failed = !scored || !own.back().ok;
  if (failed || num_scores > 0) {
    SequenceEvent& event = events.emplace_back();
    event.group_id = group.id;
    event.sequence_id = planned.sequence->id();
    event.parent_id = planned.sequence->id();
    event.score_row = first_result;
    event.num_scores = scored ? num_scores : 0;
    event.finished = failed;
    event.group_finished = failed;
    event.finish_reason = FinishReason::kError;
  }
  if (failed) {
    for (const auto& beam : group.sequences) {  // the last one has what they shared to itself
      kv_cache_.forget_own(beam->table());
      beam->table().clear();
    }
    remove(group);
    beam_rows_.clear();
  } else if (planned.what.samples) {
    beam_rows_.push_back(first_result + num_scores);
    if (std::cmp_equal(beam_rows_.size(), group.num_sequences())) {
      grow_beams(group, results, events);
      beam_rows_.clear();
    }
  }
}

void Scheduler::grow_beams(SequenceGroup& group, const SampledRows& results, std::vector<SequenceEvent>& events) {
  std::vector<BeamSearch::Row> rows;
  rows.reserve(beam_rows_.size());
  for (const std::int32_t row : beam_rows_) {
    const std::int32_t begin = results.top_offsets[row];
    const std::int32_t size = results.top_offsets[row + 1] - begin;
    rows.push_back({results.top_ids.subspan(begin, size), results.top_logprobs.subspan(begin, size)});
  }
  const BeamSearch::Step step = group.beams->grow(rows, group.stop.stop_token_ids, next_sequence_id_);
  std::vector<SequenceId> parents;
  parents.reserve(group.sequences.size());
  for (const auto& sequence : group.sequences) {
    parents.push_back(sequence->id());
  }
  const auto add_event = [&](EventKind kind, SequenceId id, const BeamSearch::Continuation& last) -> SequenceEvent& {
    SequenceEvent& event = events.emplace_back();
    event.kind = kind;
    event.group_id = group.id;
    event.sequence_id = id;
    event.parent_id = parents[last.parent];
    event.sample_row = beam_rows_[last.parent];
    event.has_token = true;
    event.token_id = last.token;
    return event;
  };
  for (const auto& [last, hypothesis] : step.finished) {
    SequenceEvent& event = add_event(EventKind::kHypothesis, hypothesis.id, last);
    event.score = hypothesis.score;
    event.finished = true;
    event.finish_reason = hypothesis.reason;
  }
  group.awaits_stops = group.beams->has_stop_strings();
  if (group.search_is_over()) {
    end_beam_search(group, events);
    return;
  }
  move_beams(group, step.live);
  for (std::size_t rank = 0; rank < step.live.size(); ++rank) {
    SequenceEvent& event = add_event(EventKind::kBeam, group.sequences[rank]->id(), step.live[rank]);
    event.branch = static_cast<std::int32_t>(rank);
    event.score = step.live[rank].sum;
  }
}

// A beam's best continuation stays in its blocks, the others are forks, and a beam without any is given up. First all
// forks, then the tokens, which differ.
void Scheduler::move_beams(SequenceGroup& group, std::span<const BeamSearch::Continuation> live) {
  std::vector<std::unique_ptr<Sequence>> next(live.size());
  std::vector<bool> goes_on(group.sequences.size(), false);
  for (std::size_t rank = 0; rank < live.size(); ++rank) {
    const Sequence& parent = *group.sequences[live[rank].parent];
    if (goes_on[live[rank].parent]) {
      next[rank] = std::make_unique<Sequence>(
          parent.fork(next_sequence_id_++, parent.branch(), kv_cache_.blocks_for(parent.num_computed_tokens())));
    }
    goes_on[live[rank].parent] = true;
  }
  for (std::size_t rank = 0; rank < live.size(); ++rank) {
    if (next[rank] == nullptr) {
      next[rank] = std::move(group.sequences[live[rank].parent]);
    }
    next[rank]->append(live[rank].token);
  }
  group.sequences.swap(next);
  for (std::unique_ptr<Sequence>& left : next) {
    if (left != nullptr) {
      plan_.forget(*left);
      left.reset();
    }
  }
}

bool Scheduler::finish_beams(GroupId id, std::span<const SequenceId> sequence_ids) {
  const auto found = groups_.find(id);
  if (found == groups_.end() || found->second.beams == nullptr) {
    return false;
  }
  SequenceGroup& group = found->second;
  bool finished = false;
  for (const SequenceId sequence_id : sequence_ids) {
    Sequence* sequence = group.find(sequence_id);
    if (sequence == nullptr) {
      continue;
    }
    finished = true;
    group.beams->finish(rank_of(group, *sequence), sequence_id, FinishReason::kStop);
    if (group.beams->num_live() > 0) {
      remove_sequence(group, *sequence);
    } else {
      break;
    }
  }
  group.awaits_stops = false;
  if (group.search_is_over()) {
    end_beam_search(group, ended_);
  }
  return finished;
}

// While planning: siblings may be planned already.
Scheduler::Room Scheduler::end_beam_at_ceiling(SequenceGroup& group, Sequence& sequence) {
  const std::optional<double> score =
      group.beams->finish(rank_of(group, sequence), sequence.id(), FinishReason::kLength);
  if (score) {
    SequenceEvent& event = ended_.emplace_back();
    event.kind = EventKind::kHypothesis;
    event.group_id = group.id;
    event.sequence_id = sequence.id();
    event.parent_id = sequence.id();
    event.score = *score;
    event.finished = true;
    event.finish_reason = FinishReason::kLength;
  }
  if (group.search_is_over()) {
    plan_.take_out(group);
    end_beam_search(group, ended_);
    return Room::kGroupGone;
  }
  remove_sequence(group, sequence);
  return Room::kSequenceEnded;
}

// With results, best first; with an error if there is not one.
void Scheduler::end_beam_search(SequenceGroup& group, std::vector<SequenceEvent>& events) {
  const auto add_event = [&](SequenceId id) -> SequenceEvent& {
    SequenceEvent& event = events.emplace_back();
    event.group_id = group.id;
    event.sequence_id = id;
    event.parent_id = id;
    event.finished = true;
    return event;
  };
  std::int32_t rank = 0;
  for (const BeamSearch::Hypothesis& hypothesis : group.beams->best()) {
    SequenceEvent& event = add_event(hypothesis.id);
    event.kind = EventKind::kResult;
    event.branch = rank++;
    event.score = hypothesis.score;
    event.finish_reason = hypothesis.reason;
  }
  if (rank == 0) {
    add_event(group.sequences.front()->id()).finish_reason = FinishReason::kError;
  }
  events.back().group_finished = true;
  remove(group);
}

}  // namespace fastpaged
