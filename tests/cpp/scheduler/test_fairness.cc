// Who goes before whom: by arrival, by priority, and by how long it has been in line.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>
#include <vector>

#include "scheduler/examples.h"
#include "scheduler/random_requests.h"
#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

SchedulerConfig by_priority(std::int32_t ageing_steps = 0) {
  SchedulerConfig config = roomy();
  config.policy.by_priority = true;
  config.policy.ageing_steps = ageing_steps;
  return config;
}

NewRequest with_priority(NewRequest request, std::int32_t priority) {
  request.priority = priority;
  return request;
}

using Ids = std::vector<GroupId>;

// Random requests over time, none of which is disturbed; each_plan(plan) after each.
template <typename EachPlan>
void play(Random& random, World& world, bool priorities, const EachPlan& each_plan) {
  const std::int32_t num_requests = random.between(2, 14);
  const std::int32_t pause = random.between(1, 5);
  while (world.num_requests < num_requests || world.scheduler.has_unfinished()) {
    while (world.num_requests < num_requests && random.once_in(pause)) {
      const auto id = static_cast<GroupId>(world.num_requests) + 1;
      NewRequest request = random_request(random, id, world.scheduler.config());
      request.priority = priorities ? random.between(0, 2) : 0;
      world.add(request);
    }
    if (world.scheduler.has_unfinished()) {
      const SchedulerOutput plan = world.schedule();
      each_plan(plan);
      world.update(plan, world.run(plan));
    }
  }
}

}  // namespace

TEST_CASE("the first step of requests is monotone in their arrival, first come, first served, whatever the policy") {
  std::int64_t num_requests = 0;
  for (unsigned seed = 0; seed < 400U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerPolicy policy = random_policy(random);
    policy.by_priority = false;
    World world(random_config(random, policy));
    GroupId last = 0;  // ids are in order of arrival
    play(random, world, true, [&](const SchedulerOutput& plan) {
      std::set<GroupId> scheduled;
      std::ranges::for_each(plan.scheduled, [&](const auto& planned) { scheduled.insert(planned.group_id); });
      for (const GroupId id : scheduled) {
        REQUIRE(id <= last + 1);
        last = std::max(last, id);
      }
    });
    REQUIRE(static_cast<std::int64_t>(last) == world.num_requests);
    num_requests += world.num_requests;
  }
  CHECK(num_requests > 1000);
}

TEST_CASE("who is preempted is worse in rank than all that run on: younger, and by priority not more important") {
  std::int64_t num_preempted = 0;
  for (unsigned seed = 0; seed < 400U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerPolicy policy = random_policy(random);
    policy.resume_grace_steps = 0;
    World world(random_config(random, policy));
    play(random, world, true, [&](const SchedulerOutput& plan) {
      for (const GroupId victim : plan.preempted) {
        ++num_preempted;
        for (const auto& [id, group] : world.slow.memory.groups) {
          const SequenceGroup& other = world.scheduler.group(id);
          REQUIRE((id == victim || group.state != GroupState::kRunning || std::ranges::count(plan.let_in, id) > 0 ||
                   other.rank() < world.scheduler.group(victim).rank()));
        }
      }
    });
  }
  CHECK(num_preempted > 300);
}

TEST_CASE("a better priority takes a place in a full batch from the worst that runs, and from nobody else") {
  SchedulerConfig config = by_priority();
  config.max_num_seqs = 3;
  Scheduler scheduler(config);
  scheduler.add(with_priority(request(1, 5, 50), 1));
  scheduler.add(with_priority(request(2, 5, 50), 2));
  scheduler.add(with_priority(request(3, 5, 50), 2));
  run_steps(scheduler, 1);
  scheduler.add(with_priority(request(4, 5, 50), 2));
  scheduler.add(with_priority(request(5, 5, 50), 0));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == Ids{3});
  CHECK(plan.let_in == Ids{5});
  CHECK(rows(plan) == Rows{{1, 5, 1}, {2, 5, 1}, {5, 0, 5}});
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(plan.preempted.empty());  // 3 and 4 are no better than 2
  answer(scheduler, plan);
}

TEST_CASE("a better priority takes blocks, from as many as it takes, the worst first") {
  SchedulerConfig config = by_priority();
  config.num_blocks = 8;
  config.policy.watermark = 0.0;
  Scheduler scheduler(config);
  for (const GroupId id : {1U, 2U, 3U, 4U}) {
    scheduler.add(with_priority(request(id, 7, 2), static_cast<std::int32_t>(id)));  // two blocks each
  }
  run_steps(scheduler, 1);
  scheduler.add(with_priority(request(5, 12, 2), 0));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == Ids{4, 3});
  CHECK(plan.let_in == Ids{5});
  answer(scheduler, plan);
}

TEST_CASE("a better priority takes the tokens of a step") {
  SchedulerConfig config = by_priority();
  config.max_num_batched_tokens = 16;
  Scheduler scheduler(config);
  scheduler.add(with_priority(request(1, 60, 2), 1));
  run_steps(scheduler, 1);
  scheduler.add(with_priority(request(2, 10, 2), 0));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == Ids{1});
  CHECK(rows(plan) == Rows{{2, 0, 10}});
  answer(scheduler, plan);
}

TEST_CASE("nobody is preempted for a priority where that would not help") {
  SchedulerConfig config = by_priority();
  config.num_blocks = 8;
  config.policy.watermark = 0.0;
  Scheduler scheduler(config);
  scheduler.add(with_priority(request(1, 20, 2), 0));  // five blocks
  scheduler.add(with_priority(request(2, 7, 2), 2));   // two
  run_steps(scheduler, 1);
  scheduler.add(with_priority(request(3, 16, 2), 1));  // four, and three are there without 2
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted.empty());
  CHECK(rows(plan) == Rows{{1, 20, 1}, {2, 7, 1}});
  answer(scheduler, plan);
}

TEST_CASE("without by_priority priorities count for nothing") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 1;
  Scheduler scheduler(config);
  scheduler.add(with_priority(request(1, 5, 3), 9));
  scheduler.add(with_priority(request(2, 5, 3), 5));
  scheduler.add(with_priority(request(3, 5, 3), 0));
  for (const GroupId id : {1U, 2U, 3U}) {
    CHECK(scheduler.schedule().let_in == Ids{id});
    static_cast<void>(scheduler.schedule());
    scheduler.abort(id);
  }
}

TEST_CASE("who has been in line for ageing_steps plans goes before better priorities, and makes way for none") {
  SchedulerConfig config = by_priority(4);
  config.max_num_seqs = 1;
  Scheduler scheduler(config);
  scheduler.add(with_priority(request(1, 5, 100), 0));
  scheduler.add(with_priority(request(2, 5, 100), 7));
  run_steps(scheduler, 4);
  CHECK_FALSE(scheduler.group(2).aged);
  run_steps(scheduler, 1);
  CHECK(scheduler.group(2).aged);
  scheduler.add(with_priority(request(3, 5, 100), -1));
  CHECK(scheduler.abort(1));
  CHECK(scheduler.schedule().let_in == Ids{2});
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted.empty());
  CHECK(scheduler.num_waiting() == 1);
}

TEST_CASE("a stream of better priorities keeps somebody out for ever, and with ageing for a while") {
  for (const std::int32_t ageing_steps : {0, 20}) {
    SchedulerConfig config = by_priority(ageing_steps);
    config.max_num_seqs = 1;
    Scheduler scheduler(config);
    scheduler.add(with_priority(request(1, 5, 4), 1));
    std::int32_t let_in_at = 0;
    for (std::int32_t step = 1; step <= 200 && let_in_at == 0; ++step) {
      scheduler.add(with_priority(request(static_cast<GroupId>(step) + 1, 5, 4), 0));
      const SchedulerOutput plan = scheduler.schedule();
      let_in_at = std::ranges::count(plan.let_in, 1U) > 0 ? step : 0;
      answer(scheduler, plan);
    }
    CHECK((ageing_steps == 0 ? let_in_at == 0 : let_in_at > 20 && let_in_at <= 20 + 4));
  }
}

// The bound that scheduler.h states, of those that ran or had come before when somebody aged.
TEST_CASE("every request is let in within its ageing, and what then has to end before") {
  std::int64_t num_aged = 0;
  for (unsigned seed = 0; seed < 400U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerPolicy policy = random_policy(random);
    policy.swapped_before_waiting = false;
    policy.by_priority = true;
    policy.ageing_steps = random.between(1, 10);
    World world(random_config(random, policy));
    std::map<GroupId, std::int64_t> num_plans_in_line;
    std::map<GroupId, std::int64_t> bounds;
    play(random, world, true, [&](const SchedulerOutput& plan) {
      for (const auto& [id, group] : world.slow.memory.groups) {
        num_plans_in_line[id] += group.was_let_in ? 0 : 1;
        if (group.aged && !bounds.contains(id)) {
          ++num_aged;
          std::int64_t outputs = 0;
          std::int64_t count = 0;
          std::int64_t longest = 0;
          for (const auto& [other_id, other] : world.slow.memory.groups) {
            if (other_id < id || other.state == GroupState::kRunning) {
              const std::int64_t prompt = std::ssize(other.asked.prompt_token_ids);
              const std::int64_t output = other.asked.stop.max_tokens;
              outputs += other.asked.num_samples * (output + 1);
              longest = std::max(longest, other.asked.num_samples * (prompt + output));
              ++count;
            }
          }
          bounds[id] = policy.ageing_steps + outputs + 3 * count * longest;
        }
        if (!group.was_let_in) {
          REQUIRE((group.aged || num_plans_in_line[id] <= policy.ageing_steps));
          REQUIRE((!group.aged || num_plans_in_line[id] <= bounds[id]));
        }
      }
      REQUIRE(plan.step > 0);
    });
  }
  CHECK(num_aged > 200);
}

}  // namespace fastpaged::test
