// Prompts share a step with those that decode, and long ones with short ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <vector>

#include "scheduler/examples.h"
#include "scheduler/random_requests.h"
#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

SchedulerConfig sharing(std::int32_t share) {
  SchedulerConfig config = roomy();
  config.num_blocks = 10'000;
  config.max_model_len = 30'000;
  config.max_num_batched_tokens = 64;
  config.policy.prefill_share = share;
  return config;
}

// Steps from when a prompt comes, beside long ones that run and one that decodes, to its first token.
std::int32_t steps_to_first_token(const std::vector<std::int32_t>& long_prompts, std::int32_t share,
                                  std::int32_t prompt) {
  Scheduler scheduler(sharing(share));
  scheduler.add(request(1, 3, 20'000));
  GroupId id = 1;
  for (const std::int32_t long_prompt : long_prompts) {
    scheduler.add(request(++id, long_prompt, 5));
  }
  run_steps(scheduler, 2 + static_cast<int>(long_prompts.size()));
  scheduler.add(request(++id, prompt, 5));
  for (std::int32_t steps = 1;; ++steps) {
    for (const SequenceEvent& event : answer(scheduler, scheduler.schedule())) {
      if (event.group_id == id) {
        return steps;
      }
    }
  }
}

}  // namespace

TEST_CASE("a short prompt has its first token in the step after it came, however long the one before it is") {
  CHECK(steps_to_first_token({1'000}, 32, 20) == 1);
  CHECK(steps_to_first_token({25'000}, 32, 20) == 1);
  CHECK(steps_to_first_token({1'000}, 0, 20) > 10);  // without shares it waits
  CHECK(steps_to_first_token({25'000}, 0, 20) > 300);
}

TEST_CASE(
    "long prompts have equal parts of their share beside those that decode, the next in line too, and the first the "
    "rest") {
  Scheduler scheduler(sharing(32));
  scheduler.add(request(1, 3, 100));
  run_steps(scheduler, 1);
  scheduler.add(request(2, 200, 5));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 3, 1}, {2, 0, 32}});
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 4, 1}, {2, 32, 32}});  // nobody is in line
  answer(scheduler, plan);
  scheduler.add(request(3, 300, 5));
  scheduler.add(request(4, 10, 5));
  scheduler.add(request(5, 300, 5));
  scheduler.add(request(6, 10, 5));
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 5, 1}, {2, 64, 16}, {3, 0, 16}, {4, 0, 10}});  // 5 would have nothing
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 6, 1}, {4, 10, 1}, {2, 80, 12}, {3, 16, 10}, {5, 0, 10}, {6, 0, 10}});  // 2 has the rest
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 7, 1}, {4, 11, 1}, {6, 10, 1}, {2, 92, 12}, {3, 26, 10}, {5, 10, 10}});
  answer(scheduler, plan);
}

TEST_CASE("where nothing decodes, prompts have all of the budget, in order") {
  Scheduler scheduler(sharing(16));
  scheduler.add(request(1, 200, 5));
  scheduler.add(request(2, 10, 5));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 54}, {2, 0, 10}});
  answer(scheduler, plan);
  CHECK(scheduler.abort(2));
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 54, 64}});
  answer(scheduler, plan);
}

TEST_CASE("a prompt is cut by its share no more when that much is left of it") {
  Scheduler scheduler(sharing(32));
  scheduler.add(request(1, 3, 100));
  run_steps(scheduler, 1);
  scheduler.add(request(2, 60, 5));
  scheduler.add(request(3, 60, 5));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 3, 1}, {2, 0, 32}});
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 4, 1}, {2, 32, 28}, {3, 0, 32}});
}

TEST_CASE("how long a prompt above the share takes depends on how many others are cut, not on how long those are") {
  for (const std::int32_t share : {8, 16}) {
    for (const std::int32_t prompt : {17, 40, 100}) {
      for (const std::size_t others : {1U, 2U, 3U}) {
        CAPTURE(share);
        CAPTURE(prompt);
        CAPTURE(others);
        const std::int32_t part = share / static_cast<std::int32_t>(others + 1);
        const std::int32_t bound = (prompt - share + part - 1) / part + 1;
        const std::int32_t steps = steps_to_first_token(std::vector(others, 1'500), share, prompt);
        CHECK(steps <= bound);
        CHECK(steps_to_first_token(std::vector(others, 8'000), share, prompt) == steps);
      }
    }
  }
}

TEST_CASE("a share of fewer tokens than there are prompts is never exceeded: the first have a token each") {
  Scheduler scheduler(sharing(3));
  scheduler.add(request(1, 3, 100));
  run_steps(scheduler, 1);
  for (const GroupId id : {2U, 3U, 4U, 5U, 6U}) {
    scheduler.add(request(id, 300, 5));
  }
  run_steps(scheduler, 3);
  SchedulerOutput plan = scheduler.schedule();
  CHECK(scheduler.num_running() == 6);
  CHECK(rows(plan) == Rows{{1, 6, 1}, {2, 5, 1}, {3, 2, 1}, {6, 0, 1}});  // the line has the last
  answer(scheduler, plan);
  CHECK(rows(scheduler.schedule()) == Rows{{1, 7, 1}, {2, 6, 1}, {3, 3, 1}, {4, 1, 1}});
}

TEST_CASE("the branches of a request that is recomputed have one part together") {
  SchedulerConfig config = sharing(12);
  config.num_blocks = 2'000;
  Scheduler scheduler(config);
  scheduler.add(request(1, 3, 400));
  NewRequest samples = request(2, 40, 200);
  samples.num_samples = 2;
  scheduler.add(samples);
  run_steps(scheduler, 100);
  scheduler.add(request(3, 500, 5));
  run_steps(scheduler, 1);
  CHECK(scheduler.preempt(2, PreemptionMode::kRecompute));
  std::int32_t num_together = 0;
  for (int step = 0; step < 40; ++step) {
    const SchedulerOutput plan = scheduler.schedule();
    const SequenceGroup& group = scheduler.group(2);
    std::int32_t num_cut = 0;
    std::int32_t of_cut = 0;
    for (const auto& sequence : group.sequences) {
      if (group.num_prefill_tokens(*sequence) > 12) {
        ++num_cut;
        const auto planned = std::ranges::find(plan.scheduled, sequence->id(), &ScheduledSequence::sequence_id);
        of_cut += planned == plan.scheduled.end() ? 0 : planned->num_tokens;
      }
    }
    CHECK(of_cut <= 6);
    num_together += num_cut == 2 ? 1 : 0;
    answer(scheduler, plan);
  }
  CHECK(num_together > 0);
}

TEST_CASE("requests that come together compute the long prefix they share once, share or not") {
  SchedulerConfig config = sharing(32);
  config.prefix_caching = true;
  Scheduler scheduler(config);
  NewRequest first = request(1, 3, 400);
  first.prompt_token_ids = {9, 9, 9};
  scheduler.add(first);
  run_steps(scheduler, 1);
  for (const GroupId id : {2U, 3U, 4U}) {
    NewRequest alike = request(id, 300, 5);
    alike.prompt_token_ids.push_back(static_cast<TokenId>(id));
    scheduler.add(alike);
  }
  std::int64_t num_computed = 0;
  for (int step = 0; step < 30; ++step) {
    const SchedulerOutput plan = scheduler.schedule();
    for (const ScheduledSequence& planned : plan.scheduled) {
      num_computed += planned.group_id == 1 ? 0 : planned.num_tokens;
    }
    answer(scheduler, plan);
  }
  CHECK(num_computed == 301 + 2 + 3 * 4);
}

TEST_CASE("who decodes never waits for more of long prompts than their share, and a first in line for a token of it") {
  std::int64_t num_full_shares = 0;
  for (unsigned seed = 0; seed < 400U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerPolicy policy = random_policy(random);
    policy.chunked_prefill = true;
    policy.prefill_share = random.between(1, 8);
    World world(random_config(random, policy));
    GroupId last_id = 0;
    for (int i = 0; i < 40; ++i) {
      if (random.once_in(3)) {
        world.add(random_request(random, ++last_id, world.scheduler.config()));
      }
      const SchedulerOutput plan = world.schedule();
      std::int64_t of_long_prompts = 0;
      bool decodes = false;
      std::set<GroupId> scheduled;
      for (const ScheduledSequence& planned : plan.scheduled) {
        const SequenceGroup& group = world.scheduler.group(planned.group_id);
        const Sequence& sequence = *group.find(planned.sequence_id);
        decodes = decodes || group.decodes();
        scheduled.insert(planned.group_id);
        const std::int32_t wanted = group.decodes() ? 0 : group.num_prefill_tokens(sequence);
        const bool is_long = planned.num_tokens < wanted || wanted > policy.prefill_share;
        of_long_prompts += is_long ? planned.num_tokens : 0;
      }
      REQUIRE((!decodes || of_long_prompts <= policy.prefill_share));
      num_full_shares += decodes && of_long_prompts == policy.prefill_share ? 1 : 0;
      for (const auto& [id, num_tokens] : plan.cached) {
        REQUIRE((std::ranges::count(plan.let_in, id) == 0 || scheduled.contains(id)));
      }
      world.update(plan, world.run(plan));
    }
  }
  CHECK(num_full_shares > 300);
}

TEST_CASE("without chunked prefill a share counts for nothing") {
  SchedulerConfig config = roomy();
  config.policy.chunked_prefill = false;
  config.policy.prefill_share = 4;
  config.max_num_batched_tokens = 200;
  Scheduler scheduler(config);
  scheduler.add(request(1, 30, 5));
  scheduler.add(request(2, 30, 5));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 30}, {2, 0, 30}});
}

}  // namespace fastpaged::test
