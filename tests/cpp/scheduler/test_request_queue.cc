#include "fastpaged/scheduler/request_queue.h"

#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <set>
#include <vector>

#include "fastpaged/base/check.h"

namespace fastpaged::test {

TEST_CASE("the aged are before all others in order of arrival, then it is by priority, then by arrival") {
  std::deque<SequenceGroup> groups(6);
  const std::vector<std::int32_t> priorities = {1, 0, 1, 0, 2, 2};
  RequestQueue queue;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].arrival = static_cast<std::int64_t>(i);
    groups[i].priority = priorities[i];
    groups[i].aged = i >= 4 || i == 1;
    queue.insert(groups[i]);
    queue.check_invariants();
  }
  const std::vector<std::int64_t> expected = {1, 4, 5, 3, 0, 2};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    CHECK(queue[i].arrival == expected[i]);
  }
  CHECK(queue.contains(groups[3]));
  queue.erase(groups[3]);
  CHECK_FALSE(queue.contains(groups[3]));
}

TEST_CASE("a queue keeps order of arrival through random comings and goings") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::deque<SequenceGroup> groups(12);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].arrival = static_cast<std::int64_t>(i);
    }
    RequestQueue queue;
    std::set<std::int64_t> model;
    for (int i = 0; i < 300; ++i) {
      SequenceGroup& group = groups[random() % groups.size()];
      REQUIRE(queue.contains(group) == model.contains(group.arrival));
      if (model.erase(group.arrival) > 0) {
        queue.erase(group);
        CHECK_THROWS_AS(queue.erase(group), InvariantError);
      } else {
        queue.insert(group);
        model.insert(group.arrival);
        CHECK_THROWS_AS(queue.insert(group), InvariantError);
      }
      queue.check_invariants();
      REQUIRE(queue.size() == model.size());
      REQUIRE(queue.empty() == model.empty());
      std::size_t index = 0;
      for (const std::int64_t arrival : model) {
        REQUIRE(queue[index++].arrival == arrival);
      }
      if (!model.empty()) {
        REQUIRE(queue.oldest().arrival == *model.begin());
        REQUIRE(queue.youngest().arrival == *model.rbegin());
      }
    }
  }
}

TEST_CASE("a queue notices that an arrival was changed under it") {
  std::deque<SequenceGroup> groups(2);
  groups[1].arrival = 1;
  RequestQueue queue;
  queue.insert(groups[0]);
  queue.insert(groups[1]);
  groups[0].arrival = 2;
  CHECK_THROWS_AS(queue.check_invariants(), InvariantError);
}

}  // namespace fastpaged::test
