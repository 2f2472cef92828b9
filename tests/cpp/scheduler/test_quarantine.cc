// After a broken invariant: who it concerns fails, its blocks are used no more, and everyone else is answered in full.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "fastpaged/base/check.h"
#include "proof_scale.h"
#include "scheduler/examples.h"
#include "scheduler/quarantined_service.h"
#include "scheduler/random_requests.h"

namespace fastpaged::test {
namespace {

using Ids = std::vector<GroupId>;

using Service = QuarantinedService;

std::set<BlockId> all_held(const Scheduler& scheduler, const std::vector<GroupId>& ids) {
  std::set<BlockId> held;
  for (const GroupId id : ids) {
    for (const auto& sequence : scheduler.group(id).sequences) {
      held.insert(sequence->table().blocks().begin(), sequence->table().blocks().end());
    }
  }
  return held;
}

}  // namespace

TEST_CASE("a broken invariant fails its owner alone and quarantines its blocks") {
  Service service(roomy());
  for (GroupId id = 1; id <= 3; ++id) {
    service.add(asks(id, 5, 20));
  }
  service.step();
  const BlockId broken = service.table(2).blocks()[1];
  Service::give_back_too_early(service.table(2), 1);  // the one it writes into: the batch cannot be built
  service.step();
  CHECK(service.failed == std::set<GroupId>{2});
  CHECK(service.scheduler.num_quarantined_blocks() == 1);
  CHECK(service.scheduler.num_running() == 2);
  for (GroupId id = 4; id <= 40; ++id) {  // more than the pool holds at once
    service.add(asks(id, 20, 20));
  }
  while (service.scheduler.has_unfinished()) {
    service.step();
    CHECK(service.scheduler.kv_cache().device_pool().ref_count(broken) == 0);
  }
  service.check_answers();
  CHECK(service.failed == std::set<GroupId>{2});
  CHECK(service.scheduler.kv_cache().num_free_blocks() == 99);
}

TEST_CASE("a batch that cannot be built: its plan is dropped, and what the others were to compute is planned anew") {
  Service service(roomy());
  service.add(asks(1, 5, 20));
  service.add(asks(2, 5, 20));
  service.step();
  Service::give_back_too_early(service.table(1), 1);
  service.add(asks(3, 6, 9));  // takes the block: two tables list it, and it has one reference
  const SchedulerOutput plan = service.scheduler.schedule();
  CHECK(plan.scheduled.size() == 3);
  const Quarantine done = service.quarantine();
  CHECK(done.failed == Ids{1, 3});
  CHECK(done.found.size() == 3);  // the block, and two requests
  CHECK_THROWS_AS(answer(service.scheduler, plan), std::invalid_argument);
  service.drain();
  service.check_answers();
}

TEST_CASE("results that cannot be taken: the others have theirs, of this very step") {
  Service service(roomy());
  NewRequest two = asks(1, 6, 9);
  two.num_samples = 2;
  service.add(two);
  service.add(asks(2, 6, 9));
  service.before_update = [&] {
    Service::give_back_too_early(service.table(1), 0);
    service.before_update = [] {};
  };
  service.step();  // 1 is to part: its samples cannot share a block that is free
  CHECK(service.failed == std::set<GroupId>{1});
  CHECK(service.answers.at({2, 0}).size() == 1);
  CHECK(service.scheduler.num_quarantined_blocks() == 1);
  service.drain();
  service.check_answers();
}

TEST_CASE("who ends and finds a block of its own free has not failed, but somebody is told") {
  Service service(roomy());
  service.add(asks(1, 6, 1));
  service.add(asks(2, 6, 9));
  service.before_update = [&] {
    Service::give_back_too_early(service.table(1), 0);
    service.before_update = [] {};
  };
  service.step();
  CHECK(service.failed.empty());
  CHECK(service.answers.at({1, 0}).size() == 1);
  CHECK(service.scheduler.num_quarantined_blocks() == 0);  // it is free, and nobody has it
  service.drain();
  service.check_answers();
}

TEST_CASE("a swap that breaks off: what it had taken of the host is out of circulation, too") {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 10;
  Service service(config);
  service.add(asks(1, 9, 9));
  service.add(asks(2, 9, 9));
  service.step();
  Service::give_back_too_early(service.table(2), 0);
  CHECK(service.scheduler.preempt(1, PreemptionMode::kSwap));
  CHECK(service.scheduler.preempt(2, PreemptionMode::kSwap));
  service.step();
  CHECK(service.failed == std::set<GroupId>{2});
  CHECK(service.scheduler.kv_cache().host_pool().num_quarantined() == 3);
  service.drain();
  service.check_answers();
  CHECK(service.scheduler.kv_cache().host_pool().num_free() == 7);
}

TEST_CASE("if nothing is wrong, nothing changes, and a plan that is out can be updated") {
  Service service(roomy());
  service.add(asks(1, 6, 9));
  service.step();
  const SchedulerOutput plan = service.scheduler.schedule();
  CHECK(service.scheduler.quarantine().found.empty());
  CHECK(answer(service.scheduler, plan).size() == 1);
  CHECK(service.scheduler.num_quarantined_blocks() == 0);
}

TEST_CASE("a pool that has become too small ends requests at its end, and refuses prompts that it cannot hold") {
  SchedulerConfig config = roomy();
  config.num_blocks = 4;
  Service service(config);
  service.add(request(3, 1, 100));
  service.step();
  Service::give_back_too_early(service.table(3), 0);
  CHECK(service.quarantine().failed == Ids{3});
  CHECK_THROWS_AS(service.scheduler.add(request(4, 13, 9)), std::invalid_argument);
  service.scheduler.add(request(5, 12, 9));
  CHECK(answer(service.scheduler, service.scheduler.schedule()).size() == 1);
  const std::vector<SequenceEvent> events = answer(service.scheduler, service.scheduler.schedule());
  REQUIRE(events.size() == 1);
  CHECK(events[0].finish_reason == FinishReason::kLength);
}

TEST_CASE("any block of anybody, at any time: who holds it fails, and all others are answered as if alone") {
  std::int64_t num_failed = 0;
  std::int64_t num_spared = 0;
  std::int64_t num_shared = 0;
  for (unsigned seed = 0; seed < 300U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerConfig config = random_config(random, random_policy(random));
    config.max_model_len = std::max(4, config.max_model_len / 2);
    config.max_num_batched_tokens += 4;
    config.num_blocks = 150;  // nobody comes near its end, less a block
    config.num_host_blocks = 20;
    Service service(config);
    for (GroupId id = 1; id <= 10; ++id) {
      NewRequest wanted = random_request(random, id, config);
      wanted.sampling.num_prompt_logprobs.reset();
      service.add(wanted);
    }
    const int steps = random.between(1, 12);
    for (int step = 0; step < steps && service.scheduler.has_unfinished(); ++step) {
      static_cast<void>(service.scheduler.preempt(static_cast<GroupId>(random.between(1, 30)), random_mode(random)));
      service.step();
    }
    Ids here;
    for (GroupId id = 1; id <= 10; ++id) {
      try {
        static_cast<void>(service.scheduler.group(id));
        here.push_back(id);
      } catch (const std::invalid_argument&) {
        continue;
      }
    }
    std::erase_if(here, [&](GroupId id) { return service.table(id).size() == 0; });
    if (!here.empty()) {
      BlockTable& table = service.table(random.one_of(here));
      const std::int32_t index = random.once_in(2) ? 0 : random.between(0, table.size() - 1);
      const BlockId block = table.blocks()[static_cast<std::size_t>(index)];
      Ids holders;
      for (const GroupId id : here) {
        const bool same_tier = &service.table(id).pool() == &table.pool();
        if (same_tier && all_held(service.scheduler, {id}).contains(block)) {
          holders.push_back(id);
        }
      }
      Service::give_back_too_early(table, index);
      CHECK_THROWS_AS(service.scheduler.check_invariants(), InvariantError);
      REQUIRE(service.quarantine().failed == holders);
      num_failed += std::ssize(holders);
      num_shared += std::ssize(holders) > 1 ? 1 : 0;
      num_spared += std::ssize(here) - std::ssize(holders);
    }
    service.drain();
    service.check_answers();
    REQUIRE(service.scheduler.num_quarantined_blocks() == (here.empty() ? 0 : 1));
  }
  CHECK(num_failed > 200);
  CHECK(num_spared > 200);
  CHECK(num_shared > 3);
}

}  // namespace fastpaged::test
