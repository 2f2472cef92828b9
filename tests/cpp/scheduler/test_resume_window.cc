// Hysteresis: who has come back after a preemption keeps its blocks for a window of steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "scheduler/beam_world.h"
#include "scheduler/examples.h"
#include "scheduler/random_requests.h"
#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

using Ids = std::vector<GroupId>;

// Blocks of four tokens.
SchedulerConfig with_window(std::int32_t num_blocks, std::int32_t steps) {
  SchedulerConfig config = roomy();
  config.num_blocks = num_blocks;
  config.policy.watermark = 0.0;
  config.policy.resume_grace_steps = steps;
  return config;
}

// Whose blocks were taken within the window, if anybody's: told by plans alone. REQUIRES: no preemption is forced.
class Windows {
 public:
  explicit Windows(const Scheduler& scheduler) : window_(scheduler.config().policy.resume_grace_steps) {}

  void note(const SchedulerOutput& plan) {
    for (const GroupId id : plan.preempted) {
      CAPTURE(id);
      REQUIRE((!came_back_.contains(id) || plan.step > came_back_.at(id) + window_));
      num_preempted_again += came_back_.contains(id) ? 1 : 0;
      gone_.insert(id);
    }
    for (const GroupId id : plan.let_in) {
      if (gone_.contains(id)) {
        came_back_[id] = plan.step;
      }
    }
  }

  std::int64_t num_preempted_again = 0;
  [[nodiscard]] std::int64_t num_came_back() const { return std::ssize(came_back_); }

 private:
  std::uint64_t window_;
  std::set<GroupId> gone_;
  std::map<GroupId, std::uint64_t> came_back_;
};

SchedulerConfig random_config_with_window(Random& random) {
  SchedulerPolicy policy = random_policy(random);
  policy.resume_grace_steps = random.between(1, 9);
  return random_config(random, policy);
}

}  // namespace

TEST_CASE("who was preempted comes back only where there is room for the growth of all over the window") {
  // 1 holds two blocks for 5 tokens, and 2, of which 5 tokens are known too, none: 8 steps more, and both have four.
  const auto let_in = [](std::int32_t num_blocks, std::int32_t window) {
    Scheduler scheduler(with_window(num_blocks, window));
    scheduler.add(request(1, 4, 40));
    scheduler.add(request(2, 4, 40));
    run_steps(scheduler, 1);
    CHECK(scheduler.preempt(2, PreemptionMode::kRecompute));
    return scheduler.schedule().let_in;
  };
  CHECK(let_in(8, 8) == Ids{2});
  CHECK(let_in(7, 8).empty());
  CHECK(let_in(7, 7) == Ids{2});  // one token less each: three blocks are enough
  CHECK(let_in(7, 0) == Ids{2});
}

TEST_CASE("room is kept for what a request may still say, not for more") {
  Scheduler scheduler(with_window(7, 8));
  scheduler.add(request(1, 4, 40));
  scheduler.add(request(2, 4, 8));  // the last of its 12 tokens is never computed
  run_steps(scheduler, 1);
  CHECK(scheduler.preempt(2, PreemptionMode::kRecompute));
  CHECK(scheduler.schedule().let_in == Ids{2});
}

TEST_CASE("while a window lasts, a new request is let in only if it leaves the room that was kept") {
  const auto steps_until_let_in = [](std::int32_t num_blocks, std::int32_t window) {
    Scheduler scheduler(with_window(num_blocks, window));
    scheduler.add(request(1, 7, 40));
    run_steps(scheduler, 1);
    CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
    scheduler.add(request(2, 12, 40));
    int steps = 0;
    while (scheduler.num_waiting() > 0) {
      run_steps(scheduler, 1);
      ++steps;
    }
    return steps;
  };
  CHECK(steps_until_let_in(9, 8) == 1);  // 16 tokens of 1, 20 of 2: nine blocks
  CHECK(steps_until_let_in(8, 8) == 5);  // 16 tokens of 1, but 16 of 2, for half the window is over
  CHECK(steps_until_let_in(8, 0) == 1);
}

TEST_CASE("who is kept is not the one to go, though it is the youngest, unless there is no other") {
  SchedulerConfig config = with_window(20, 8);
  config.max_num_seqs = 64;
  Scheduler scheduler(config);
  for (GroupId id = 1; id <= 3; ++id) {
    scheduler.add(request(id, 4, 40));
  }
  run_steps(scheduler, 1);
  CHECK(scheduler.preempt(3, PreemptionMode::kRecompute));
  run_steps(scheduler, 1);  // it comes back at once
  CHECK(scheduler.num_running() == 3);
  Ids expected;
  SUBCASE("a fork takes the room of all: who is not kept goes") {
    expected = {2};
  }
  SUBCASE("and nobody else is there: who is kept goes") {
    CHECK(scheduler.abort(2));
    static_cast<void>(scheduler.fork(1, 0));
    static_cast<void>(scheduler.fork(1, 0));
    expected = {3};
  }
  for (int i = 0; i < 15; ++i) {  // 14 blocks are free
    static_cast<void>(scheduler.fork(1, 0));
  }
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == expected);
  CHECK(plan.num_tokens > 15);
}

TEST_CASE("nobody is preempted for room twice within the window: any traces of samples, with a prefix cache") {
  std::int64_t num_came_back = 0;
  std::int64_t num_preempted_again = 0;
  for (unsigned seed = 0; seed < 500U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    World world(random_config_with_window(random));
    Windows windows(world.scheduler);
    GroupId last_id = 0;
    while (last_id < 12 || world.scheduler.has_unfinished()) {
      if (last_id < 12 && random.once_in(3)) {
        world.add(random_request(random, ++last_id, world.scheduler.config()));
      }
      if (world.scheduler.has_unfinished()) {
        const SchedulerOutput plan = world.schedule();
        windows.note(plan);
        world.update(plan, world.run(plan));
      }
    }
    num_came_back += windows.num_came_back();
    num_preempted_again += windows.num_preempted_again;
  }
  CHECK(num_came_back > 300);
  CHECK(num_preempted_again > 5);  // later
}

TEST_CASE("nobody is preempted for room twice within the window: any traces with beams") {
  std::int64_t num_came_back = 0;
  for (unsigned seed = 0; seed < 300U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerConfig config = random_config_with_window(random);
    config.num_blocks += 6;
    config.max_num_batched_tokens += 4;
    config.max_num_seqs = std::max(4, config.max_num_seqs);
    config.max_num_rows = 0;
    BeamWorld world(config, random.once_in(2), 0);
    Windows windows(world.scheduler);
    for (GroupId id = 1; id <= 6; ++id) {
      NewRequest request = random_request(random, id, config);
      request.num_samples = 1;
      if (random.once_in(2)) {
        const std::int32_t width = random.between(1, 4);
        request.sampling.beam = BeamParams{.width = width, .num_candidates = 3 * width};
      }
      world.add(request);
    }
    while (world.scheduler.has_unfinished()) {
      const SchedulerOutput plan = world.schedule();
      windows.note(plan);
      world.carry_out(plan);
      world.find_stops(false);
    }
    num_came_back += windows.num_came_back();
  }
  CHECK(num_came_back > 100);
}

}  // namespace fastpaged::test
