#include "proofs/plain_requests.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

namespace fastpaged::test {

namespace {

// A beam and one of the candidates of its row.
PlainBranch grown(PlainBranch beam, const SequenceEvent& event, const SampledRows& results, History root) {
  const std::int32_t begin = results.top_offsets[event.sample_row];
  const std::int32_t end = results.top_offsets[event.sample_row + 1];
  const auto ids = results.top_ids.subspan(begin, end - begin);
  const auto place = std::ranges::find(ids, event.token_id) - ids.begin();
  REQUIRE(place < std::ssize(ids));
  beam.score = beam.score.value_or(0.0) + static_cast<double>(results.top_logprobs[begin + place]);
  beam.append(event.token_id, root);
  beam.branch = event.branch;
  return beam;
}

}  // namespace

void PlainRequests::add(const NewRequest& request, SequenceId id) {
  PlainRequest& plain = requests_[request.id];
  plain.asked = request;
  plain.parted = request.num_samples == 1;
  PlainBranch& branch = plain.branches[id];
  for (const TokenId token : request.prompt_token_ids) {
    branch.append(token, plain.root());
  }
}

void PlainRequests::fork(GroupId group, SequenceId parent, SequenceId child) {
  PlainRequest& request = requests_.at(group);
  PlainBranch branch = request.branches.at(parent);
  branch.most_computed = static_cast<std::int32_t>(branch.tokens.size()) - 1;
  branch.branch = request.num_branches++;
  REQUIRE(request.branches.emplace(child, std::move(branch)).second);
}

void PlainRequests::finish(GroupId group, SequenceId branch) {
  PlainRequest& request = requests_.at(group);
  if (request.asked.sampling.beam) {
    request.hypotheses[branch] = request.branches.at(branch);
    request.hypotheses[branch].score.reset();
  }
  REQUIRE(request.branches.erase(branch) == 1);
  if (request.branches.empty() && !request.asked.sampling.beam) {
    erase(group);
  }
}

void PlainRequests::lose_beam(GroupId group, SequenceId beam) {
  PlainRequest& request = requests_.at(group);
  REQUIRE(request.asked.sampling.beam);
  REQUIRE(std::cmp_greater_equal(request.hypotheses.size(), request.width()));
  REQUIRE(request.branches.erase(beam) == 1);
}

void PlainRequests::await_results(GroupId group) {
  REQUIRE(awaiting_results_.insert(requests_.extract(group)).inserted);
}

void PlainRequests::clear() {
  requests_.clear();
  awaiting_results_.clear();
}

void PlainRequests::hear(std::span<const SequenceEvent> events, const SampledRows& results) {
  while (!events.empty()) {
    const GroupId group = events.front().group_id;
    const auto end = std::ranges::find_if(events, [&](const SequenceEvent& event) { return event.group_id != group; });
    const std::span<const SequenceEvent> own = events.first(end - events.begin());
    events = events.subspan(own.size());
    const bool awaits = awaiting_results_.contains(group);
    PlainRequest& request = awaits ? awaiting_results_.at(group) : requests_.at(group);
    const bool over = request.asked.sampling.beam ? hear_beams(request, own, results) : hear_samples(request, own);
    for (const SequenceEvent& event : own) {
      REQUIRE(event.group_finished == (over && &event == &own.back()));
    }
    if (over) {
      (awaits ? awaiting_results_ : requests_).erase(group);
    }
  }
}

// Each event speaks of its parent as it was before all of them.
bool PlainRequests::hear_samples(PlainRequest& request, std::span<const SequenceEvent> events) {
  const std::map<SequenceId, PlainBranch> before = request.branches;
  check_parting(request, events);
  for (const SequenceEvent& event : events) {
    REQUIRE(before.contains(event.parent_id));
    hear_sample(request, event, before.at(event.parent_id));
  }
  for (const SequenceEvent& event : events) {
    if (event.finished) {
      REQUIRE(request.branches.erase(event.sequence_id) == 1);
    }
  }
  return request.branches.empty();
}

// The first token: one for each of the samples.
void PlainRequests::check_parting(PlainRequest& request, std::span<const SequenceEvent> events) {
  const bool samples = events.front().has_token || events.front().finished;
  if (request.parted || !samples) {
    REQUIRE(std::ranges::all_of(events, [](const auto& event) { return event.sequence_id == event.parent_id; }));
    return;
  }
  REQUIRE(std::cmp_less_equal(events.size(), request.asked.num_samples));
  const bool drawn = std::ranges::any_of(events, &SequenceEvent::has_token);  // neither at the pool's end nor failed
  REQUIRE((!drawn || std::cmp_equal(events.size(), request.asked.num_samples)));
  for (std::size_t i = 0; i < events.size(); ++i) {
    REQUIRE(std::cmp_equal(events[i].branch, i));
    REQUIRE(events[i].parent_id == events[0].sequence_id);
    REQUIRE((events[i].sequence_id == events[0].sequence_id) == (i == 0));
  }
  request.parted = true;
  request.num_branches = request.asked.num_samples;
  num_parted_ += drawn ? 1 : 0;
}

void PlainRequests::hear_sample(PlainRequest& request, const SequenceEvent& event, const PlainBranch& past) {
  const bool itself = event.sequence_id == event.parent_id;
  REQUIRE(event.kind == EventKind::kSample);
  REQUIRE((!itself || event.branch == past.branch));
  REQUIRE((itself || !request.branches.contains(event.sequence_id)));
  PlainBranch now = past;
  now.branch = event.branch;
  if (event.has_token) {
    now.append(event.token_id, request.root());
  }
  request.branches[event.sequence_id] = now;
}

// The live beams are those that are named, in order of rank; a search is over with its results, or an error.
bool PlainRequests::hear_beams(PlainRequest& request, std::span<const SequenceEvent> events,
                               const SampledRows& results) {
  const std::map<SequenceId, PlainBranch> before = request.branches;
  std::map<SequenceId, PlainBranch> live;
  std::set<SequenceId> going_on;
  std::int32_t rank = 0;
  for (const SequenceEvent& event : events) {
    switch (event.kind) {
      case EventKind::kSample:
        REQUIRE_FALSE(event.has_token);
        REQUIRE((event.finished ? event.finish_reason >= FinishReason::kError : event.num_scores > 0));
        break;
      case EventKind::kBeam: {
        PlainBranch& beam = live[event.sequence_id];
        beam = grown(before.at(event.parent_id), event, results, request.root());
        REQUIRE(event.score == beam.score);
        REQUIRE(std::cmp_equal(event.branch, live.size() - 1));
        num_beams_forked_ += event.sequence_id != event.parent_id ? 1 : 0;
        REQUIRE((event.sequence_id == event.parent_id) == going_on.insert(event.parent_id).second);
        break;
      }
      case EventKind::kHypothesis: {
        PlainBranch beam = before.at(event.parent_id);
        if (event.has_token) {
          beam = grown(beam, event, results, request.root());
        } else {
          REQUIRE(event.sequence_id == event.parent_id);
          REQUIRE(request.branches.erase(event.sequence_id) == 1);
        }
        beam.score = event.score;
        REQUIRE(request.hypotheses.emplace(event.sequence_id, beam).second);
        break;
      }
      case EventKind::kResult:
        REQUIRE(request.hypotheses.contains(event.sequence_id));
        REQUIRE(event.score == request.hypotheses.at(event.sequence_id).score.value_or(event.score));
        REQUIRE(event.branch == rank++);
        ++num_results_;
        break;
    }
  }
  REQUIRE(std::cmp_less_equal(live.size(), request.width()));
  if (!live.empty()) {
    request.branches = live;
  }
  return rank > 0 || (events.back().kind == EventKind::kSample && events.back().finished);
}

}  // namespace fastpaged::test
