// PlainRequests: what requests are, read from nothing but the events that one hears of them: of each branch that lives,
// its tokens and what their K and V must be.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "proofs/history.h"

namespace fastpaged::test {

struct PlainBranch {
  std::vector<TokenId> tokens;
  std::vector<History> histories;  // of each token
  std::int32_t branch = 0;         // which of its request's
  std::int32_t most_computed = 0;  // tokens, ever

  void append(TokenId token, History root) {
    histories.push_back(with(histories.empty() ? root : histories.back(), token));
    tokens.push_back(token);
  }
};

struct PlainRequest {
  NewRequest asked;
  std::map<SequenceId, PlainBranch> branches;  // that live
  std::int32_t num_branches = 1;               // there ever were
  bool parted = false;                         // its samples have, or there is but one

  [[nodiscard]] History root() const { return beginning(asked.cache_root); }
};

class PlainRequests {
 public:
  void add(const NewRequest& request, SequenceId id);
  // A branch forked off when all but its parent's last token are computed.
  void fork(GroupId group, SequenceId parent, SequenceId child);
  void erase(GroupId group) { requests_.erase(group); }
  void erase(GroupId group, SequenceId branch);  // and with the last one the request
  void clear() { requests_.clear(); }
  // All that one step, or its planning, has to say.
  void hear(std::span<const SequenceEvent> events);

  [[nodiscard]] bool contains(GroupId group) const { return requests_.contains(group); }
  [[nodiscard]] bool contains(GroupId group, SequenceId branch) const {
    return contains(group) && requests_.at(group).branches.contains(branch);
  }
  [[nodiscard]] PlainBranch& branch(GroupId group, SequenceId branch) {
    return requests_.at(group).branches.at(branch);
  }
  [[nodiscard]] const std::map<GroupId, PlainRequest>& all() const { return requests_; }  // unfinished ones
  [[nodiscard]] std::int64_t num_parted() const { return num_parted_; }  // requests for several samples, ever

 private:
  void hear_sample(const SequenceEvent& event, const PlainBranch& past);
  void check_parting(std::span<const SequenceEvent> events);

  std::map<GroupId, PlainRequest> requests_;
  std::int64_t num_parted_ = 0;
};

}  // namespace fastpaged::test
