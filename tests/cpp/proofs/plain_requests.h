// PlainRequests: what requests are, read from nothing but the events that one hears of them: of each branch that lives,
// its tokens and what their K and V must be.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "proofs/history.h"

namespace fastpaged::test {

struct PlainBranch {
  std::vector<TokenId> tokens;
  std::vector<History> histories;    // of each token
  std::int32_t branch = 0;           // which of its request's samples; of a beam: its rank when it was last heard of
  std::int32_t most_computed = 0;    // tokens, ever
  std::optional<double> score = {};  // of a beam: the sum of its logprobs; of a hypothesis, if it was heard, its score

  void append(TokenId token, History root) {
    histories.push_back(with(histories.empty() ? root : histories.back(), token));
    tokens.push_back(token);
  }
};

struct PlainRequest {
  NewRequest asked;
  std::map<SequenceId, PlainBranch> branches;    // that live
  std::map<SequenceId, PlainBranch> hypotheses;  // finished beams
  std::int32_t num_branches = 1;                 // there ever were
  bool parted = false;                           // its samples have, or there is but one

  [[nodiscard]] std::int32_t width() const { return asked.sampling.beam.value_or(BeamParams{}).width; }  // 0: no beams
  [[nodiscard]] History root() const { return beginning(asked.cache_root); }
};

class PlainRequests {
 public:
  void add(const NewRequest& request, SequenceId id);
  // A branch forked off when all but its parent's last token are computed.
  void fork(GroupId group, SequenceId parent, SequenceId child);
  void erase(GroupId group) { requests_.erase(group); }
  // A branch ends by wish from outside: a beam becomes a hypothesis, whatever else goes, with the last one the request.
  void finish(GroupId group, SequenceId branch);
  // A beam at the pool's end is lost without a word if enough hypotheses are better.
  void lose_beam(GroupId group, SequenceId beam);
  // The request has left the scheduler; its results are still to be heard.
  void await_results(GroupId group);
  void clear();
  // All that one step, or its planning, has to say. results: what the step sampled.
  void hear(std::span<const SequenceEvent> events, const SampledRows& results);

  [[nodiscard]] bool contains(GroupId group) const { return requests_.contains(group); }
  [[nodiscard]] bool contains(GroupId group, SequenceId branch) const {
    return contains(group) && requests_.at(group).branches.contains(branch);
  }
  [[nodiscard]] PlainBranch& branch(GroupId group, SequenceId branch) {
    return requests_.at(group).branches.at(branch);
  }
  [[nodiscard]] const std::map<GroupId, PlainRequest>& all() const { return requests_; }  // unfinished ones
  // Ever: requests whose samples have parted, beams that were forks of others, results of searches.
  [[nodiscard]] std::int64_t num_parted() const { return num_parted_; }
  [[nodiscard]] std::int64_t num_beams_forked() const { return num_beams_forked_; }
  [[nodiscard]] std::int64_t num_results() const { return num_results_; }

 private:
  // Each takes what one request hears at once, and says whether it is over.
  bool hear_samples(PlainRequest& request, std::span<const SequenceEvent> events);
  bool hear_beams(PlainRequest& request, std::span<const SequenceEvent> events, const SampledRows& results);
  void hear_sample(PlainRequest& request, const SequenceEvent& event, const PlainBranch& past);
  void check_parting(PlainRequest& request, std::span<const SequenceEvent> events);

  std::map<GroupId, PlainRequest> requests_;
  std::map<GroupId, PlainRequest> awaiting_results_;
  std::int64_t num_parted_ = 0;
  std::int64_t num_beams_forked_ = 0;
  std::int64_t num_results_ = 0;
};

}  // namespace fastpaged::test
