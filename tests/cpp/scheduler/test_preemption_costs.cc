// Swapped or recomputed: whichever is cheaper by the costs. And what each request has cost is counted.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/examples.h"
#include "scheduler/random_requests.h"
#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

SchedulerConfig by_cost(const PreemptionCosts& costs) {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 100;
  config.policy.preemption_mode = PreemptionMode::kAuto;
  config.costs = costs;
  return config;
}

// Preempts this group, which runs, by cost. Whether it was swapped.
bool is_swapped(Scheduler& scheduler, GroupId id) {
  REQUIRE(scheduler.preempt(id, PreemptionMode::kAuto));
  const SchedulerOutput plan = scheduler.schedule();
  REQUIRE(plan.preempted == std::vector<GroupId>{id});
  return !plan.swapped_out.empty();
}

std::string refusal(const PreemptionCosts& costs) {
  try {
    const Scheduler scheduler(by_cost(costs));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("by cost: seven tokens in two blocks are swapped if that is cheaper, and recomputed if it is not") {
  // Two blocks of four hold seven computed tokens: recomputing takes 7 s.
  const auto swapped_at = [](double out, double in) {
    Scheduler scheduler(by_cost({.seconds_per_token = 1.0, .seconds_per_block_out = out, .seconds_per_block_in = in}));
    scheduler.add(request(1, 7, 9));
    run_steps(scheduler, 1);
    return is_swapped(scheduler, 1);
  };
  CHECK(swapped_at(1.0, 2.25));        // 6.5 s
  CHECK_FALSE(swapped_at(1.0, 2.5));   // 7 s: both cost the same
  CHECK_FALSE(swapped_at(1.0, 2.75));  // 7.5 s
  CHECK(swapped_at(2.25, 1.0));        // the way out counts like the way in
  CHECK_FALSE(swapped_at(2.75, 1.0));
}

TEST_CASE("by cost: without costs, and where the host pool has no room, a group is recomputed") {
  Scheduler scheduler(by_cost({}));
  scheduler.add(request(1, 7, 9));
  run_steps(scheduler, 1);
  CHECK_FALSE(is_swapped(scheduler, 1));
  SchedulerConfig config = by_cost({.seconds_per_token = 1.0});
  config.num_host_blocks = 1;
  Scheduler small_host(config);
  small_host.add(request(1, 7, 9));
  run_steps(small_host, 1);
  CHECK_FALSE(is_swapped(small_host, 1));
}

TEST_CASE("by cost: what branches share counts once, in tokens and in blocks") {
  // Three branches of 8 shared tokens and one each: 4 tokens of two full blocks twice, 3 tokens in 3 blocks.
  const auto swapped_at = [](double per_block) {
    Scheduler scheduler(by_cost({.seconds_per_token = 1.0, .seconds_per_block_out = per_block}));
    NewRequest three = request(1, 8, 9);
    three.num_samples = 3;
    scheduler.add(three);
    run_steps(scheduler, 2);
    CHECK(scheduler.group(1).num_sequences() == 3);
    return is_swapped(scheduler, 1);
  };
  CHECK(swapped_at(2.125));       // 5 blocks: 10.625 s against 11 s
  CHECK_FALSE(swapped_at(2.25));  // 11.25 s
}

TEST_CASE("by cost: what others hold too will be found again, and need not be recomputed") {
  const auto swapped_beside = [](bool skips_cache, double per_block) {
    SchedulerConfig config = by_cost({.seconds_per_token = 1.0, .seconds_per_block_out = per_block});
    config.prefix_caching = true;
    Scheduler scheduler(config);
    scheduler.add(request(1, 9, 9));
    run_steps(scheduler, 1);
    NewRequest second = request(2, 9, 9);
    second.skip_prefix_cache = skips_cache;
    scheduler.add(second);
    run_steps(scheduler, 1);
    CHECK(scheduler.num_running() == 2);
    return is_swapped(scheduler, 2);  // three blocks; nine tokens, eight of which 1 holds too
  };
  CHECK_FALSE(swapped_beside(false, 0.5));  // 1.5 s against 1 s
  CHECK(swapped_beside(false, 0.25));
  CHECK(swapped_beside(true, 2.0));  // it would not look: 6 s against 9 s
}

// Two requests fill the pool; when the first needs a block more, the second has to go: of its four blocks of 64, three
// are full and cached. Swapping costs 80 s; recomputing 1 s, or 193 s if nothing is found again.
TEST_CASE("by cost: what it alone has in the cache is hoped to be found, until it was not found") {
  SchedulerConfig config = by_cost({.seconds_per_token = 1.0, .seconds_per_block_out = 20.0});
  config.block_size = 64;
  config.num_blocks = 8;
  config.prefix_caching = true;
  config.max_num_batched_tokens = 1024;
  config.max_model_len = 600;
  Scheduler scheduler(config);
  std::vector<bool> swapped;
  for (GroupId id = 0; swapped.size() < 60; id += 2) {
    scheduler.add(request(id, 255, 3));
    NewRequest victim = request(id + 1, 192, 5);
    victim.prompt_token_ids.front() = 8;  // nothing in common with the other
    scheduler.add(victim);
    run_steps(scheduler, 2);
    const SchedulerOutput plan = scheduler.schedule();
    REQUIRE(plan.preempted == std::vector<GroupId>{id + 1});
    swapped.push_back(!plan.swapped_out.empty());
    answer(scheduler, plan);
    scheduler.reset_prefix_cache();  // so that it finds nothing when it comes back
    while (scheduler.has_unfinished()) {
      run_steps(scheduler, 1);
    }
    scheduler.reset_prefix_cache();
  }
  CHECK_FALSE(swapped[0]);
  CHECK(swapped[1]);
  const auto num_tried = std::ranges::count(swapped, false);
  CHECK(num_tried > 1);  // again, now and then
  CHECK(num_tried < 6);
}

TEST_CASE("costs may change at any time, and must be seconds") {
  Scheduler scheduler(by_cost({.seconds_per_token = 1.0}));
  scheduler.set_costs({.seconds_per_token = 1.0, .seconds_per_block_out = 100.0});
  scheduler.add(request(1, 7, 9));
  run_steps(scheduler, 1);
  CHECK_FALSE(is_swapped(scheduler, 1));
  CHECK_THROWS_AS(scheduler.set_costs({.seconds_per_token = -1.0}), std::invalid_argument);
  CHECK(scheduler.config().costs.seconds_per_block_out == 100.0);
  CHECK(refusal({.seconds_per_token = -1.0}) == "seconds_per_token must be seconds >= 0, got -1.000000");
  CHECK(refusal({.seconds_per_block_out = std::numeric_limits<double>::infinity()}) ==
        "seconds_per_block_out must be seconds >= 0, got inf");
  CHECK(refusal({.seconds_per_block_in = -0.5}) == "seconds_per_block_in must be seconds >= 0, got -0.500000");
  CHECK_THROWS_AS(scheduler.set_costs({.seconds_per_token = std::nan("")}), std::invalid_argument);
}

TEST_CASE("what preemptions have cost a request can be asked at its end, and a step later") {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 10;
  Scheduler scheduler(config);
  scheduler.add(request(1, 5, 4));
  run_steps(scheduler, 1);
  REQUIRE(scheduler.preempt(1, PreemptionMode::kSwap));
  run_steps(scheduler, 1);
  REQUIRE(scheduler.preempt(1, PreemptionMode::kRecompute));
  run_steps(scheduler, 1);
  const RequestCost expected = {
      .num_preemptions = 2, .num_tokens_recomputed = 6, .num_blocks_swapped_out = 2, .num_blocks_swapped_in = 2};
  CHECK(scheduler.request_cost(1) == expected);
  scheduler.add(request(2, 1, 9));
  run_steps(scheduler, 1);  // which ends 1
  CHECK_THROWS_AS(static_cast<void>(scheduler.group(1)), std::invalid_argument);
  CHECK(scheduler.request_cost(1) == expected);
  CHECK(scheduler.request_cost(2) == RequestCost{});
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(scheduler.request_cost(1) == expected);
  answer(scheduler, plan);
  run_steps(scheduler, 1);
  CHECK(scheduler.request_cost(1) == RequestCost{});  // as of one that was never here
}

// Over whole traces, everyone's costs add up to the scheduler's own.
TEST_CASE("the costs of all requests add up to the totals") {
  std::int64_t num_swapped = 0;
  std::int64_t num_recomputed = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerPolicy policy;
    policy.preemption_mode = PreemptionMode::kAuto;
    policy.resume_grace_steps = random.between(0, 4);
    World world(random_config(random, policy));
    RequestCost total;
    const auto add_up = [&](const std::vector<GroupId>& gone) {
      for (const GroupId id : gone) {
        const RequestCost cost = world.scheduler.request_cost(id);
        total.num_preemptions += cost.num_preemptions;
        total.num_tokens_recomputed += cost.num_tokens_recomputed;
        total.num_blocks_swapped_out += cost.num_blocks_swapped_out;
        total.num_blocks_swapped_in += cost.num_blocks_swapped_in;
      }
    };
    for (GroupId id = 1; id <= 8; ++id) {
      world.add(random_request(random, id, world.scheduler.config()));
    }
    while (world.scheduler.has_unfinished()) {
      const auto before = world.slow.memory.groups;
      world.step();
      std::vector<GroupId> gone;
      for (const auto& [id, group] : before) {
        if (!world.slow.memory.groups.contains(id)) {
          gone.push_back(id);
        }
      }
      add_up(gone);
    }
    const SchedulerStats& stats = world.scheduler.stats();
    REQUIRE(total.num_preemptions == stats.num_preemptions);
    REQUIRE(total.num_tokens_recomputed == stats.num_tokens_recomputed);
    REQUIRE(total.num_blocks_swapped_out == stats.num_blocks_swapped_out);
    REQUIRE(total.num_blocks_swapped_in == stats.num_blocks_swapped_in);
    num_swapped += total.num_blocks_swapped_in;
    num_recomputed += total.num_tokens_recomputed;
  }
  CHECK(num_swapped > 100);
  CHECK(num_recomputed > 100);
}

}  // namespace fastpaged::test
