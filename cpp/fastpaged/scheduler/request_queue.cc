#include "fastpaged/scheduler/request_queue.h"

#include <algorithm>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

template <typename Groups>
auto place_of(Groups& groups, const SequenceGroup& group) {
  return std::lower_bound(groups.begin(), groups.end(), group.rank(),
                          [](const SequenceGroup* other, const auto& rank) { return other->rank() < rank; });
}

}  // namespace

bool RequestQueue::contains(const SequenceGroup& group) const {
  const auto place = place_of(groups_, group);
  return place != groups_.end() && *place == &group;
}

void RequestQueue::insert(SequenceGroup& group) {
  const auto place = place_of(groups_, group);
  invariant(place == groups_.end() || (*place)->rank() != group.rank(), "RequestQueue: two groups of one rank");
  groups_.insert(place, &group);
}

void RequestQueue::erase(SequenceGroup& group) {
  const auto place = place_of(groups_, group);
  invariant(place != groups_.end() && *place == &group, "RequestQueue: erasing a group that is not there");
  groups_.erase(place);
}

void RequestQueue::check_invariants() const {
  const auto out_of_order = std::adjacent_find(
      groups_.begin(), groups_.end(),
      [](const SequenceGroup* first, const SequenceGroup* second) { return first->rank() >= second->rank(); });
  invariant(out_of_order == groups_.end(), "RequestQueue: not in order of rank");
}

}  // namespace fastpaged
