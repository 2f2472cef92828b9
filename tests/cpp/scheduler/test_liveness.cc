// Nobody waits for ever: random arrivals, forks, ends and pins on any pool that can hold the largest single request;
// every step does something, and all is done within the bound that scheduler.h states.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "scheduler/random_requests.h"
#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

// The bound without swapped_before_waiting: in every step the oldest group computes a token, or somebody gets an output
// token, or a branch ends at the pool's end.
std::int64_t bound_of_one_line(const World& world) {
  return world.num_branch_tokens + world.num_output_tokens + world.num_branches;
}

// The bound with it. In every step somebody gets an output token, or a branch ends at the pool's end, or the oldest
// *running* group O computes a token: O may always take blocks and budget from younger groups. So a step is dull only
// if it is one of O's own prefill; while O stays the oldest running group nobody preempts it, and it has at most
// `most_dull_steps` of them before it decodes.
//
// How often can another group become O? By O's end: at most once per request. By the entry of an older group E while O
// runs, and there are two kinds of that. (1) E is the oldest of all: never preempted, it stays O to its end, so this
// happens at most once per request. (2) The oldest of all, W, does not run. If it is swapped, it is the first to come
// back and nobody else comes in. So it waits, at the head of the waiting line, nobody passes it there, and E comes back
// from the host: it is the oldest swapped group, older than all that run. Nobody older than E comes in before W does,
// so E stays O until it ends or W comes in, as (1): such entries are at most as many as ends and entries of kind (1).
// That makes at most four terms as O per request, each with its dull steps.
std::int64_t bound_of_two_lines(const World& world, std::int64_t most_dull_steps) {
  return world.num_output_tokens + world.num_branches + 4 * world.num_requests * most_dull_steps;
}

struct Totals {
  std::int64_t traces = 0;
  std::int64_t steps = 0;
  std::int64_t preemptions = 0;
  std::int64_t ceilings = 0;
  std::int64_t scores = 0;
  std::int64_t found = 0;          // tokens, in the prefix cache
  std::int64_t pins_released = 0;  // so that somebody can run
};

// Up to all of the pool, which must keep nobody from running.
void keep_prefixes(Random& random, World& world, PinId id) {
  const SchedulerConfig& config = world.scheduler.config();
  const auto& pins = world.slow.memory.pins;
  if (config.prefix_caching) {
    const std::int32_t length = random.between(config.block_size, 3 * config.block_size);
    world.pin(id, random_prompt(random, length), random_root(random));
  }
  if (!pins.empty() && random.once_in(3)) {
    world.unpin(random.one_of(pins).first);
  }
}

// Arrivals over time, in bursts and in pauses; branches come and go.
void play_trace(Random& random, World& world) {
  const std::int32_t num_requests = random.between(1, 12);
  const std::int32_t pause = random.between(1, 6);
  const bool forks = random.once_in(2);
  GroupId last_id = 0;
  PinId last_pin = 0;
  while (world.num_requests < num_requests || world.scheduler.has_unfinished()) {
    while (world.num_requests < num_requests && random.once_in(pause)) {
      NewRequest request = random_request(random, ++last_id, world.scheduler.config());
      if (world.scheduler.config().policy.by_priority) {
        request.priority = random.between(0, 3);
      }
      world.add(request);
    }
    const auto& groups = world.slow.memory.groups;
    if (!groups.empty() && forks && random.once_in(3) && world.num_branches < 40) {
      const auto& [id, group] = random.one_of(groups);
      const SequenceId branch = random.one_of(group.branches).first;
      random.once_in(8) ? world.finish(id, branch) : world.fork(id, branch);
    }
    if (random.once_in(4)) {
      keep_prefixes(random, world, ++last_pin);
    }
    if (world.scheduler.has_unfinished()) {
      world.step();
    }
    REQUIRE(world.num_steps < 100'000);
  }
}

template <typename Policy, typename Bound>
Totals play_traces_by(const Policy& policy, const Bound& bound) {
  Totals totals;
  for (unsigned seed = 0; seed < 700U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    World world(random_config(random, policy(random)));
    play_trace(random, world);
    world.check_drained();
    REQUIRE(world.num_steps <= bound(world));
    ++totals.traces;
    totals.steps += world.num_steps;
    totals.preemptions += world.num_preemptions;
    totals.ceilings += world.num_ceilings;
    totals.scores += world.num_scores;
    totals.found += world.scheduler.stats().num_prefix_tokens_found;
    totals.pins_released += world.scheduler.stats().num_pins_released;
  }
  MESSAGE("traces: ", totals.traces, ", steps: ", totals.steps, ", preemptions: ", totals.preemptions,
          ", ends at the ceiling: ", totals.ceilings, ", tokens found: ", totals.found,
          ", pins released: ", totals.pins_released);
  return totals;
}

template <typename Bound>
Totals play_traces(const SchedulerPolicy& policy, const Bound& bound) {
  return play_traces_by([&](Random&) { return policy; }, bound);
}

}  // namespace

TEST_CASE("one line: everyone ends in time, and the oldest is never preempted, by whatever mode") {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap, PreemptionMode::kByBranches}) {
    CAPTURE(static_cast<int>(mode));
    SchedulerPolicy policy;
    policy.preemption_mode = mode;
    const Totals totals = play_traces(policy, bound_of_one_line);
    CHECK(totals.preemptions > 300);
    CHECK(totals.ceilings > 100);
    CHECK(totals.scores > 3000);
    CHECK(totals.found > 300);
    CHECK(totals.pins_released > 50);
  }
}

TEST_CASE("with windows in which who came back is kept, by cost: everyone ends in time, too") {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kAuto;
  for (const std::int32_t steps : {1, 8}) {
    CAPTURE(steps);
    policy.resume_grace_steps = steps;
    CHECK(play_traces(policy, bound_of_one_line).preemptions > 300);
  }
  policy.swapped_before_waiting = true;
  const auto bound = [](const World& world) { return bound_of_two_lines(world, world.num_branch_tokens); };
  CHECK(play_traces(policy, bound).preemptions > 300);
}

TEST_CASE("swapped before waiting: everyone ends in time, too") {
  SchedulerPolicy policy;
  policy.swapped_before_waiting = true;
  const auto bound = [](const World& world) { return bound_of_two_lines(world, world.num_branch_tokens); };
  CHECK(play_traces(policy, bound).preemptions > 300);
  policy.counts_running_needs = false;
  policy.preemption_mode = PreemptionMode::kSwap;
  CHECK(play_traces(policy, bound).preemptions > 300);
}

// By priority the best of all takes the place of the oldest: it changes when a better one comes or ages, or it ends.
TEST_CASE("by priority, with and without ageing and shares: everyone ends in time, too") {
  SchedulerPolicy policy;
  policy.by_priority = true;
  policy.preemption_mode = PreemptionMode::kAuto;
  const auto bound = [](const World& world) { return bound_of_two_lines(world, world.num_branch_tokens); };
  CHECK(play_traces(policy, bound).preemptions > 300);
  policy.ageing_steps = 5;
  policy.prefill_share = 4;
  policy.resume_grace_steps = 3;
  CHECK(play_traces(policy, bound).preemptions > 300);
}

// Windows, shares, priorities, ageing, either line, costs, thresholds, the cache on both tiers, pins: all at random.
TEST_CASE("whatever the policy is made of: everyone ends in time, too") {
  const auto bound = [](const World& world) {
    const SchedulerPolicy& policy = world.scheduler.config().policy;
    const bool changes_places = policy.swapped_before_waiting || policy.by_priority;
    return changes_places ? bound_of_two_lines(world, world.num_branch_tokens) : bound_of_one_line(world);
  };
  const Totals totals = play_traces_by(random_policy, bound);
  CHECK(totals.preemptions > 300);
  CHECK(totals.found > 300);
  CHECK(totals.pins_released > 50);
}

TEST_CASE("one line with shares: everyone ends in the time of one line") {
  SchedulerPolicy policy;
  policy.prefill_share = 3;
  CHECK(play_traces(policy, bound_of_one_line).preemptions > 100);
}

// Whole prompts: a request of one branch has no dull step, and one of several finishes a branch's prefill in each.
// Prompts that are scored are cut to the rows there are.
TEST_CASE("the paper's policy: everyone ends in time, too") {
  const auto bound = [](const World& world) {
    const bool forked = world.num_branches > world.num_requests;
    const bool cut = world.num_scores > 0 && world.scheduler.config().max_num_rows > 0;
    const std::int64_t most = cut ? world.num_branch_tokens : forked ? world.scheduler.config().max_num_seqs : 0;
    return bound_of_two_lines(world, most);
  };
  const Totals totals = play_traces(SchedulerPolicy::paper_2023(), bound);
  CHECK(totals.preemptions > 300);
  CHECK(totals.ceilings > 100);
}

}  // namespace fastpaged::test
