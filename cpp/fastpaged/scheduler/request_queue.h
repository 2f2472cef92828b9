// RequestQueue: groups in order of rank (sequence_group.h): of arrival, if all have one priority. A rank changes only
// while its group is in no queue. It points to them; the scheduler owns them.
//
// Groups come and go mostly at the ends (arrival, admission, preemption), which costs O(1); in the middle O(n).
#pragma once

#include <cstddef>
#include <deque>

#include "fastpaged/scheduler/sequence_group.h"

namespace fastpaged {

class RequestQueue {
 public:
  [[nodiscard]] bool empty() const { return groups_.empty(); }
  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  [[nodiscard]] SequenceGroup& operator[](std::size_t index) const { return *groups_[index]; }
  [[nodiscard]] SequenceGroup& oldest() const { return *groups_.front(); }   // first in rank. REQUIRES: not empty
  [[nodiscard]] SequenceGroup& youngest() const { return *groups_.back(); }  // last in rank. REQUIRES: not empty
  [[nodiscard]] bool contains(const SequenceGroup& group) const;

  void insert(SequenceGroup& group);  // broken invariant if it is there already
  void erase(SequenceGroup& group);   // broken invariant if it is not there
  void clear() { groups_.clear(); }
  void check_invariants() const;

 private:
  std::deque<SequenceGroup*> groups_;
};

}  // namespace fastpaged
