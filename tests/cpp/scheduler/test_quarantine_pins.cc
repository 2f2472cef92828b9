// A broken block that pins hold, too; and the looks that find what nobody trips over.
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/base/check.h"
#include "proof_scale.h"
#include "scheduler/examples.h"
#include "scheduler/quarantined_service.h"
#include "scheduler/random_requests.h"

namespace fastpaged::test {
namespace {

using Service = QuarantinedService;

SchedulerConfig with_pins() {
  SchedulerConfig config = roomy();
  config.prefix_caching = true;
  config.max_pinned_blocks = 40;
  return config;
}

NewRequest asks_for(GroupId id, std::vector<TokenId> prompt, std::int32_t max_tokens) {
  NewRequest wanted = asks(id, 1, max_tokens);
  wanted.prompt_token_ids = std::move(prompt);
  return wanted;
}

const std::vector<TokenId> kPinned = {1, 2, 3, 4, 5, 6, 7, 8};

// Both looks say the same as check_invariants() of references that are wrong by one.
void check_found(const Scheduler& scheduler) {
  CHECK_FALSE(scheduler.references_add_up());
  CHECK_THROWS_AS(scheduler.check_references(), InvariantError);
  CHECK_THROWS_AS(scheduler.check_invariants(), InvariantError);
}

}  // namespace

TEST_CASE("a broken block that pins hold is taken from them, in whatever order others let go of it") {
  std::string orders = "aqrs";  // abort, quarantine, release a pin, step
  do {
    for (const bool ends_first : {false, true}) {
      CAPTURE(orders);
      Service service(with_pins());
      service.add(asks_for(1, kPinned, ends_first ? 2 : 30));
      service.add(asks_for(2, {9, 8, 7, 6, 5}, 30));
      for (PinId pin = 1; pin <= 3; ++pin) {
        service.scheduler.pin(pin, kPinned);
      }
      service.step();
      CHECK(service.scheduler.pins()[0].num_held_blocks == 2);
      for (int times = ends_first ? 1 : 3; times > 0; --times) {  // of four references
        Service::give_back_too_early(service.table(1), 0);
      }
      for (const char action : orders) {
        if (action == 'a') {
          static_cast<void>(service.scheduler.abort(1));
          service.failed.insert(1);  // or gone, at least
        } else if (action == 'q') {
          static_cast<void>(service.quarantine());
        } else if (action == 'r') {
          CHECK(service.scheduler.unpin(2));
        } else {
          if (!service.scheduler.references_add_up()) {  // as may be asked before each step
            static_cast<void>(service.quarantine());
          }
          service.step();
        }
      }
      static_cast<void>(service.quarantine());
      for (const PinnedPrefix& pin : service.scheduler.pins()) {
        CHECK(pin.num_held_blocks <= 2);
      }
      service.add(asks_for(3, kPinned, 30));  // the pins take its blocks
      service.drain();
      service.check_answers();
      CHECK_FALSE(service.failed.contains(2));
      CHECK(service.scheduler.pins()[0].num_held_blocks == 2);
      CHECK(service.scheduler.unpin(1));
      CHECK(service.scheduler.unpin(3));
      service.scheduler.check_invariants();
      CHECK(service.scheduler.kv_cache().num_free_blocks() + service.scheduler.num_quarantined_blocks() == 100);
    }
  } while (std::ranges::next_permutation(orders).found);
}

TEST_CASE("pins and requests over the same prompts, any block at any time: the looks find it, nothing throws") {
  std::int64_t num_pinned = 0;
  std::int64_t num_spared = 0;
  for (unsigned seed = 0; seed < 300U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerConfig config = with_pins();
    config.num_host_blocks = random.once_in(2) ? 30 : 0;
    config.host_prefix_tier = config.num_host_blocks > 0;
    Service service(config);
    for (GroupId id = 1; id <= 6; ++id) {
      std::vector<TokenId> prompt(static_cast<std::size_t>(random.between(1, 14)), random.between(1, 2));
      service.add(asks_for(id, std::move(prompt), random.between(1, 12)));
    }
    for (PinId pin = 1; pin <= 3; ++pin) {
      service.scheduler.pin(
          pin, std::vector<TokenId>(static_cast<std::size_t>(random.between(4, 14)), random.between(1, 2)));
    }
    for (int step = random.between(1, 8); step > 0; --step) {
      static_cast<void>(service.scheduler.preempt(static_cast<GroupId>(random.between(1, 20)), random_mode(random)));
      service.step();
    }
    std::vector<GroupId> here;
    for (GroupId id = 1; id <= 6; ++id) {
      try {
        if (service.table(id).size() > 0) {
          here.push_back(id);
        }
      } catch (const std::invalid_argument&) {
        continue;
      }
    }
    if (!here.empty()) {
      BlockTable& table = service.table(random.one_of(here));
      const std::int32_t index = random.between(0, table.size() - 1);
      const BlockId block = table.blocks()[static_cast<std::size_t>(index)];
      const bool on_device = &table.pool() == &service.scheduler.kv_cache().device_pool();
      num_pinned += on_device && service.scheduler.snapshot().device.blocks.at(block).pinned ? 1 : 0;
      for (std::int32_t times = random.between(1, std::min(3, table.pool().ref_count(block))); times > 0; --times) {
        Service::give_back_too_early(table, index);
      }
      check_found(service.scheduler);
      const GroupId gone = random.one_of(here);
      if (random.once_in(2)) {
        CHECK(service.scheduler.abort(gone));
        service.failed.insert(gone);
      }
      if (random.once_in(2)) {
        CHECK(service.scheduler.unpin(static_cast<PinId>(random.between(1, 3))));
      }
      static_cast<void>(service.quarantine());
      CHECK(service.scheduler.references_add_up());
      num_spared += std::ssize(here) - std::ssize(service.failed);
    }
    service.drain();
    service.check_answers();
  }
  CHECK(num_pinned > 50);
  CHECK(num_spared > 100);
}

TEST_CASE("a block given back too early and handed out again is in two tables: both fail, at whichever look") {
  Service service(roomy());
  service.add(asks(1, 5, 20));
  service.add(asks(2, 4, 20));
  service.add(asks(3, 5, 20));
  service.step();
  const BlockId block = service.table(1).blocks()[0];  // which it does not write into: nobody trips over it
  Service::give_back_too_early(service.table(1), 0);
  check_found(service.scheduler);  // before it is handed out
  const SchedulerOutput plan = service.scheduler.schedule();
  CHECK(service.table(2).blocks()[1] == block);
  check_found(service.scheduler);
  CHECK(service.quarantine().failed == std::vector<GroupId>{1, 2});
  service.drain();
  service.check_answers();
  CHECK(service.answers.at({3, 0}).size() == 20);
  CHECK(service.scheduler.num_quarantined_blocks() == 1);
}

TEST_CASE("a table that was given its own block again is found before its samples part") {
  NewRequest many = asks(1, 12, 9);
  many.num_samples = 3;
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 4;
  config.max_num_seqs = 4;
  Service slow(config);
  slow.add(many);
  slow.step();
  Service::give_back_too_early(slow.table(1), 0);
  static_cast<void>(slow.scheduler.schedule());
  CHECK(slow.table(1).blocks()[0] == slow.table(1).blocks()[1]);
  check_found(slow.scheduler);
  CHECK(slow.quarantine().failed == std::vector<GroupId>{1});
}

}  // namespace fastpaged::test
