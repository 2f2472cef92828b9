#include "proofs/plain_requests.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ranges>
#include <utility>

namespace fastpaged::test {

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

void PlainRequests::erase(GroupId group, SequenceId branch) {
  REQUIRE(requests_.at(group).branches.erase(branch) == 1);
  if (requests_.at(group).branches.empty()) {
    erase(group);
  }
}

// Each event speaks of its parent as it was before all of them.
void PlainRequests::hear(std::span<const SequenceEvent> events) {
  while (!events.empty()) {
    const GroupId group = events.front().group_id;
    const auto end = std::ranges::find_if(events, [&](const SequenceEvent& event) { return event.group_id != group; });
    const std::span<const SequenceEvent> own = events.first(end - events.begin());
    events = events.subspan(own.size());
    REQUIRE(requests_.contains(group));
    const std::map<SequenceId, PlainBranch> before = requests_.at(group).branches;
    check_parting(own);
    for (const SequenceEvent& event : own) {
      REQUIRE(before.contains(event.parent_id));
      hear_sample(event, before.at(event.parent_id));
    }
    for (const SequenceEvent& event : own) {
      if (event.finished) {
        erase(group, event.sequence_id);
      }
    }
    const bool gone = !requests_.contains(group);
    for (const SequenceEvent& event : own) {
      REQUIRE(event.group_finished == (gone && &event == &own.back()));
    }
  }
}

// The first token: one for each of the samples.
void PlainRequests::check_parting(std::span<const SequenceEvent> events) {
  PlainRequest& request = requests_.at(events.front().group_id);
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

void PlainRequests::hear_sample(const SequenceEvent& event, const PlainBranch& past) {
  PlainRequest& request = requests_.at(event.group_id);
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

}  // namespace fastpaged::test
