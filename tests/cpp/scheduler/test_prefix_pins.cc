// Pinned prefixes: what they hold, when they let go of it, and that they are in nobody's way.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/prefix_examples.h"

namespace fastpaged::test {
namespace {

using Pins = std::vector<PinnedPrefix>;

// A pool of six blocks of four tokens, two of which hold a pinned text.
struct Pinned {
  explicit Pinned(const SchedulerConfig& config = caching(6)) : scheduler(config) {
    warm(scheduler, 1, counting(100, 9));
    REQUIRE(scheduler.pin(7, counting(100, 8)) == 2);
  }
  Scheduler scheduler;
};

// Runs a text of so many blocks that has nothing in common with others.
void fill(Scheduler& scheduler, GroupId id, std::int32_t num_blocks_filled) {
  warm(scheduler, id, counting(static_cast<TokenId>(1000 * id), 4 * num_blocks_filled));
}

std::string refusal(Scheduler& scheduler, PinId id, Tokens tokens) {
  try {
    scheduler.pin(id, std::move(tokens));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a pinned prefix is used, not free, and stays while all else is evicted") {
  Pinned pinned;
  Scheduler& scheduler = pinned.scheduler;
  scheduler.check_invariants();
  CHECK(scheduler.kv_cache().num_free_blocks() == 4);
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 2}});
  fill(scheduler, 2, 4);
  fill(scheduler, 3, 4);
  scheduler.add(text(4, counting(100, 9)));
  CHECK(scheduler.schedule().cached == Cached{{4, 8}});
  CHECK(scheduler.stats().num_pins_released == 0);
}

TEST_CASE("an unpinned prefix is found until somebody needs the room") {
  Pinned pinned;
  Scheduler& scheduler = pinned.scheduler;
  CHECK(scheduler.unpin(7));
  CHECK_FALSE(scheduler.unpin(7));
  scheduler.check_invariants();
  CHECK(scheduler.kv_cache().num_free_blocks() == 6);
  CHECK(scheduler.kv_cache().device_pool().cached_free_blocks().size() == 2);
  scheduler.add(text(2, counting(100, 9)));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{2, 8}});
  answer(scheduler, plan);
  fill(scheduler, 3, 6);
  scheduler.add(text(4, counting(100, 9)));
  CHECK(scheduler.schedule().cached == Cached{{4, 0}});
}

TEST_CASE("a prefix may be pinned before it is there: it is held block by block as it is computed") {
  SchedulerConfig config = caching();
  config.max_num_batched_tokens = 6;
  Scheduler scheduler(config);
  CHECK(scheduler.pin(7, counting(100, 15)) == 0);
  CHECK(scheduler.pins() == Pins{{7, 15, 3, 0}});
  scheduler.add(text(1, counting(100, 20)));
  std::vector<std::int32_t> held;
  for (int step = 0; step < 4; ++step) {
    run_steps(scheduler, 1);
    held.push_back(scheduler.pins().at(0).num_held_blocks);
  }
  CHECK(held == std::vector<std::int32_t>{1, 3, 3, 3});
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(scheduler.kv_cache().num_free_blocks() == 97);
}

TEST_CASE("a pin holds what its own text and root have, and no more") {
  Scheduler scheduler(caching());
  CHECK(scheduler.pin(7, joined(counting(100, 4), counting(50, 4))) == 0);
  CHECK(scheduler.pin(8, counting(100, 8), "tenant") == 0);
  CHECK(scheduler.pin(9, counting(100, 8)) == 0);
  warm(scheduler, 1, counting(100, 13));
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 1}, {8, 8, 2, 0}, {9, 8, 2, 2}});
  CHECK(scheduler.kv_cache().num_free_blocks() == 98);
  warm(scheduler, 2, counting(100, 9), "tenant");
  warm(scheduler, 3, joined(counting(200, 4), counting(50, 5)));  // the second block's tokens after another first
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 1}, {8, 8, 2, 2}, {9, 8, 2, 2}});
}

TEST_CASE("a pin whose missing block ends like the one that is offered takes it only if it is that one") {
  Scheduler scheduler(caching());
  scheduler.pin(1, joined(counting(100, 7), {1}));
  scheduler.pin(2, joined(counting(200, 3), {103}));
  scheduler.pin(3, {7, 7, 7, 103});
  warm(scheduler, 1, counting(100, 9));
  CHECK(scheduler.pins() == Pins{{1, 8, 2, 1}, {2, 4, 1, 0}, {3, 4, 1, 0}});
  warm(scheduler, 2, joined(counting(200, 3), {103, 5}));
  warm(scheduler, 3, joined(counting(100, 7), {1, 5}));
  CHECK(scheduler.pins() == Pins{{1, 8, 2, 2}, {2, 4, 1, 1}, {3, 4, 1, 0}});
  CHECK(scheduler.unpin(2));
  warm(scheduler, 4, {7, 7, 7, 103, 5});
  CHECK(scheduler.pins() == Pins{{1, 8, 2, 2}, {3, 4, 1, 1}});
}

TEST_CASE("pins have a budget, and say what is wrong") {
  SchedulerConfig config = caching();
  config.max_pinned_blocks = 5;
  Scheduler scheduler(config);
  scheduler.pin(1, counting(100, 15));
  CHECK(refusal(scheduler, 2, counting(200, 12)) ==
        "token_ids fill 3 blocks, and 2 of the 5 that may be pinned are left");
  CHECK(refusal(scheduler, 1, counting(200, 4)) == "pin_id 1 is in use");
  CHECK(refusal(scheduler, 2, counting(200, 3)) == "token_ids must fill at least one block of 4 to be pinned, got 3");
  CHECK(refusal(scheduler, PinId{1} << 63, counting(200, 4)) == "pin_id must be below 2^63, got 9223372036854775808");
  CHECK(scheduler.pins() == Pins{{1, 15, 3, 0}});
  CHECK(refusal(scheduler, 2, counting(200, 11)) == "accepted");
  CHECK(scheduler.unpin(1));
  CHECK(refusal(scheduler, 1, counting(200, 12)) == "accepted");
}

TEST_CASE("who gives back what it does not hold is named, be it a pin or a sequence") {
  BlockPool pool("device", 1);
  const BlockId block = pool.allocate(3).value();
  pool.release(block, 3);
  CHECK_THROWS_WITH_AS(pool.release(block, PrefixPins::owner_of(7)),
                       "pin 7 cannot release block 0 of the device pool: it is free, last given back by sequence 3",
                       std::invalid_argument);
}

TEST_CASE("pins need prefix caching, and a budget that is none is refused") {
  const auto message = [](std::int32_t max_pinned_blocks, bool prefix_caching) -> std::string {
    SchedulerConfig config = roomy();
    config.max_pinned_blocks = max_pinned_blocks;
    config.prefix_caching = prefix_caching;
    try {
      const Scheduler scheduler(config);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(message(1, false) == "max_pinned_blocks must be 0 without prefix_caching, got 1");
  CHECK(message(-1, true) == "max_pinned_blocks must be >= 0, got -1");
  CHECK(message(0, true) == "accepted");
  Scheduler scheduler(roomy());
  CHECK(refusal(scheduler, 1, counting(200, 4)) ==
        "token_ids fill 1 blocks, and 0 of the 0 that may be pinned are left");
}

TEST_CASE("a request that fits the pool runs, whatever is pinned; the pin stays, and holds again when it can") {
  Pinned pinned;
  Scheduler& scheduler = pinned.scheduler;
  scheduler.add(text(2, counting(200, 21), 4));  // all six blocks
  const SchedulerOutput plan = scheduler.schedule();
  scheduler.check_invariants();
  CHECK(rows(plan) == Rows{{2, 0, 21}});
  CHECK(plan.preempted.empty());
  CHECK(plan.ended.empty());
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 0}});
  CHECK(scheduler.stats().num_pins_released == 1);
  answer(scheduler, plan);
  run_steps(scheduler, 3);
  CHECK_FALSE(scheduler.has_unfinished());
  warm(scheduler, 3, counting(100, 9));
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 2}});
}

TEST_CASE("a request that grows alone has pins released too, one by one, the one unused for longest first") {
  Scheduler scheduler(caching(8));
  for (PinId id = 1; id <= 3; ++id) {
    const auto first = static_cast<TokenId>(100 * id);
    warm(scheduler, id, counting(first, 5));
    REQUIRE(scheduler.pin(id, counting(first, 4)) == 1);
  }
  warm(scheduler, 4, counting(100, 6));            // uses the first pin
  scheduler.add(text(5, counting(1000, 19), 12));  // five blocks, in the end all eight
  std::vector<std::vector<PinId>> held;
  for (int step = 0; step < 12; ++step) {
    const SchedulerOutput plan = scheduler.schedule();
    CHECK(plan.preempted.empty());
    answer(scheduler, plan);
    std::vector<PinId>& ids = held.emplace_back();
    for (const PinnedPrefix& pin : scheduler.pins()) {
      ids.insert(ids.end(), static_cast<std::size_t>(pin.num_held_blocks), pin.id);
    }
  }
  using Ids = std::vector<PinId>;
  const Ids all = {1, 2, 3};
  const Ids two = {1, 3};
  CHECK(held == std::vector<Ids>{all, all, two, two, two, two, {1}, {1}, {1}, {1}, {}, {}});
  CHECK(scheduler.stats().num_pins_released == 3);
}

TEST_CASE("pins are released for who runs alone; beside others the youngest goes, or waits") {
  SchedulerConfig config = caching(6);
  config.policy.watermark = 0.0;
  Pinned pinned(config);
  Scheduler& scheduler = pinned.scheduler;
  scheduler.add(text(2, counting(200, 7), 9));
  scheduler.add(text(3, counting(300, 7), 9));
  scheduler.add(text(4, counting(400, 3), 9));
  run_steps(scheduler, 1);
  CHECK(scheduler.num_running() == 2);  // four blocks; the fourth has no room beside the pin
  run_steps(scheduler, 1);
  const SchedulerOutput plan = scheduler.schedule();  // the first of them needs a third block
  CHECK(plan.preempted == std::vector<GroupId>{3});
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 2}});
}

TEST_CASE("the only request comes back from the host, whatever was pinned meanwhile") {
  SchedulerConfig config = caching(6);
  config.num_host_blocks = 6;
  config.policy.watermark = 0.0;
  Scheduler scheduler(config);
  scheduler.add(text(1, counting(200, 14), 3));  // four blocks
  scheduler.add(text(2, counting(100, 8), 5));   // two, and then three
  run_steps(scheduler, 1);
  scheduler.preempt(1, PreemptionMode::kSwap);
  run_steps(scheduler, 4);
  REQUIRE(scheduler.num_running() == 0);
  REQUIRE(scheduler.num_swapped() == 1);
  REQUIRE(scheduler.pin(7, joined(counting(100, 8), {1, 1, 1, 1})) == 3);
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.swapped_in == std::vector<GroupId>{1});
  CHECK(scheduler.pins() == Pins{{7, 12, 3, 0}});
  answer(scheduler, plan);
}

TEST_CASE("resetting the cache empties pins, which stay; resetting the scheduler leaves them alone") {
  Pinned pinned;
  Scheduler& scheduler = pinned.scheduler;
  scheduler.add(text(2, counting(200, 9), 9));
  run_steps(scheduler, 1);
  scheduler.reset();
  scheduler.check_invariants();
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 2}});
  CHECK(scheduler.kv_cache().num_free_blocks() == 4);
  scheduler.reset_prefix_cache();
  scheduler.check_invariants();
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 0}});
  CHECK(scheduler.kv_cache().device_pool().free_blocks().size() == 6);
  warm(scheduler, 3, counting(100, 9));
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 2}});
}

TEST_CASE("a released pin holds again once a request finds its blocks, though nobody computed them anew") {
  Pinned pinned;
  Scheduler& scheduler = pinned.scheduler;
  scheduler.add(text(2, counting(200, 20)));  // five blocks: the pin goes, one of its blocks too
  answer(scheduler, scheduler.schedule());
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 0}});
  scheduler.add(text(3, counting(100, 7)));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{3, 4}});
  CHECK(scheduler.pins() == Pins{{7, 8, 2, 1}});
}

}  // namespace fastpaged::test
