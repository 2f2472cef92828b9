// Random requests and random wishes on small pools. Each step is held against the slow scheduler, each answer against
// the toy model run alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"
#include "scheduler/slow_scheduler.h"
#include "scheduler/toy_model.h"

namespace fastpaged::test {
namespace {

struct Random {
  explicit Random(unsigned seed) : engine(seed) {}
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(engine);
  }
  bool once_in(std::int32_t n) { return between(1, n) == 1; }
  std::mt19937 engine;
};

SchedulerConfig random_config(Random& random, std::int32_t block_size) {
  SchedulerConfig config;
  config.block_size = block_size;
  config.num_blocks = random.between(1, 12);
  config.max_num_seqs = random.between(1, 6);
  config.max_num_batched_tokens = random.between(1, 12);
  config.max_model_len = random.between(2, 30);
  config.long_prefill_token_threshold = random.once_in(2) ? random.between(1, 4) : 0;
  return config;
}

NewRequest random_request(Random& random, GroupId id, const SchedulerConfig& config) {
  NewRequest request{.id = id};
  const std::int32_t longest = std::min(config.max_model_len - 1, config.num_blocks * config.block_size);
  const std::int32_t length = random.between(1, longest);
  for (std::int32_t i = 0; i < length; ++i) {
    request.prompt_token_ids.push_back(random.between(0, kVocabSize - 1));
  }
  request.stop.max_tokens = random.between(1, 20);
  if (random.once_in(2)) {
    request.stop.stop_token_ids = {random.between(25, 49), random.between(0, 24)};
  }
  request.sampling.seed = id;
  return request;
}

// A scheduler, its judge, and what each request has heard so far.
class World {
 public:
  explicit World(const SchedulerConfig& config)
      : scheduler(config), slow(config), builder_(scheduler), model_(scheduler.kv_cache()) {}

  void add(const NewRequest& request) {
    scheduler.add(request);
    slow.add(request);
    plain[request.id] = answer_plainly(request, scheduler.config());
    steps_allowed += std::ssize(request.prompt_token_ids) + 2 * request.stop.max_tokens + 1;
  }

  void abort(GroupId id) {
    const bool here = slow.requests.erase(id) > 0;
    CHECK(scheduler.abort(id) == here);
    if (here) {
      plain.erase(id);
    }
    check();
  }

  SchedulerOutput schedule() {
    const bool work = !slow.requests.empty();
    slow_plan_ = slow.schedule();
    SchedulerOutput plan = scheduler.schedule();
    unreported_.insert(unreported_.end(), slow_plan_.ended.begin(), slow_plan_.ended.end());
    check_plan(plan);
    CHECK((!work || plan.num_tokens > 0 || !slow_plan_.ended.empty()));
    check();
    return plan;
  }

  // failing: a request whose logits hold a NaN in this step, if it samples.
  std::vector<SampledToken> run(const SchedulerOutput& plan, GroupId failing) {
    model_.poison(scheduler.kv_cache().free_blocks());
    std::vector<SampledToken> tokens = model_.run(builder_.build(plan));
    REQUIRE(std::ssize(tokens) == plan.num_samples);
    std::size_t row = 0;
    sampled_.clear();
    for (const ScheduledSequence& scheduled : plan.scheduled) {
      if (scheduled.samples) {
        tokens[row].ok = scheduled.group_id != failing;
        const SampleRequest& asked = builder_.sample_requests()[row];
        CHECK(asked.params.seed == scheduled.group_id);
        CHECK(asked.position == scheduled.first_token + scheduled.num_tokens);
        sampled_[scheduled.group_id] = tokens[row].ok ? tokens[row].token_id : -1;
        ++row;
      }
    }
    return tokens;
  }

  void update(const SchedulerOutput& plan, const std::vector<SampledToken>& tokens) {
    slow.update(slow_plan_, sampled_);
    std::size_t num_ended = 0;
    for (const SequenceEvent& event : scheduler.update(plan, tokens)) {
      if (num_ended < unreported_.size()) {
        REQUIRE(event.group_id == unreported_[num_ended++]);
        CHECK_FALSE(event.has_token);
      } else {
        CHECK(sampled_.contains(event.group_id));
        CHECK((!event.has_token || event.token_id == tokens[event.sample_row].token_id));
      }
      hear(event);
    }
    CHECK(num_ended == unreported_.size());
    unreported_.clear();
    check();
  }

  void check_all_answered() {
    CHECK(plain.empty());
    CHECK_FALSE(scheduler.has_unfinished());
    CHECK(scheduler.kv_cache().num_free_blocks() == scheduler.kv_cache().num_blocks());
  }

  Scheduler scheduler;
  SlowScheduler slow;
  std::map<GroupId, PlainAnswer> plain;  // requests still to be answered
  std::int64_t steps_allowed = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_pool_ends = 0;

 private:
  void check_plan(const SchedulerOutput& plan) {
    const SchedulerConfig& config = scheduler.config();
    decltype(slow_plan_.scheduled) scheduled;
    std::int64_t num_tokens = 0;
    for (const ScheduledSequence& s : plan.scheduled) {
      scheduled.emplace_back(s.group_id, s.first_token, s.num_tokens);
      num_tokens += s.num_tokens;
      CHECK(s.num_tokens > 0);
      CHECK((config.long_prefill_token_threshold == 0 || s.num_tokens <= config.long_prefill_token_threshold));
      CHECK(std::count(plan.preempted.begin(), plan.preempted.end(), s.group_id) == 0);
      CHECK(s.samples == (scheduler.group(s.group_id).sequences[0].num_tokens() == s.first_token + s.num_tokens));
      // No block beyond what this step writes.
      CHECK(scheduler.group(s.group_id).sequences[0].table().size() ==
            scheduler.kv_cache().blocks_for(s.first_token + s.num_tokens));
    }
    CHECK(scheduled == slow_plan_.scheduled);
    CHECK(plan.preempted == slow_plan_.preempted);
    CHECK(plan.num_tokens == num_tokens);
    CHECK(num_tokens <= config.max_num_batched_tokens);
    CHECK(scheduler.num_running() <= config.max_num_seqs);
    CHECK(plan.ended.size() == unreported_.size());
    num_preemptions += std::ssize(plan.preempted);
  }

  void hear(const SequenceEvent& event) {
    REQUIRE(plain.contains(event.group_id));  // neither aborted nor ended before
    const PlainAnswer& expected = plain[event.group_id];
    std::vector<TokenId>& so_far = heard_[event.group_id];
    if (event.has_token) {
      so_far.push_back(event.token_id);
    }
    REQUIRE(so_far.size() <= expected.tokens.size());
    CHECK(std::equal(so_far.begin(), so_far.end(), expected.tokens.begin()));
    if (event.finished) {
      if (event.finish_reason != FinishReason::kError) {
        CHECK(so_far.size() == expected.tokens.size());
        CHECK(event.finish_reason == expected.reason);
      }
      num_pool_ends += event.has_token || event.finish_reason == FinishReason::kError ? 0 : 1;
      plain.erase(event.group_id);
    }
  }

  void check() {
    scheduler.check_invariants();
    REQUIRE(scheduler.kv_cache().num_free_blocks() == slow.free_blocks());
    REQUIRE(scheduler.num_waiting() + scheduler.num_running() == std::ssize(slow.requests));
    for (const auto& [id, request] : slow.requests) {
      const Sequence& sequence = scheduler.group(id).sequences[0];
      REQUIRE(sequence.num_tokens() == request.tokens);
      REQUIRE(sequence.num_computed_tokens() == request.computed);
    }
  }

  BatchBuilder builder_;
  ToyModel model_;
  SlowPlan slow_plan_;
  std::map<GroupId, TokenId> sampled_;
  std::vector<GroupId> unreported_;  // ended while planning
  std::map<GroupId, std::vector<TokenId>> heard_;
};

constexpr GroupId kNobody = 0;  // requests count from 1

}  // namespace

TEST_CASE("every request gets the answer it would get alone, within the promised number of steps") {
  std::int64_t num_preemptions = 0;
  std::int64_t num_pool_ends = 0;
  for (unsigned seed = 0; seed < 1200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    World world(random_config(random, static_cast<std::int32_t>(1 + seed % 4)));
    const std::int32_t num_requests = random.between(1, 10);
    for (std::int32_t id = 1; id <= num_requests; ++id) {
      world.add(random_request(random, static_cast<GroupId>(id), world.scheduler.config()));
    }
    std::int64_t steps = 0;
    while (world.scheduler.has_unfinished()) {
      REQUIRE(++steps <= world.steps_allowed);
      const SchedulerOutput plan = world.schedule();
      world.update(plan, world.run(plan, kNobody));
    }
    world.check_all_answered();
    num_preemptions += world.num_preemptions;
    num_pool_ends += world.num_pool_ends;
  }
  CHECK(num_preemptions > 100);  // the pools were small enough to matter
  CHECK(num_pool_ends > 100);
}

TEST_CASE("arrivals, aborts at any moment, NaN rows and forgotten plans disturb nobody else and leak nothing") {
  for (unsigned seed = 0; seed < 1200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    World world(random_config(random, static_cast<std::int32_t>(1 + seed % 4)));
    GroupId last_id = 0;
    const auto maybe_abort = [&] {
      if (last_id > 0 && random.once_in(6)) {
        world.abort(static_cast<GroupId>(random.between(1, static_cast<std::int32_t>(last_id))));
      }
    };
    for (int step = 0; step < 40 || world.scheduler.has_unfinished(); ++step) {
      REQUIRE(step < 5000);
      if (step < 40 && random.once_in(3)) {
        ++last_id;
        world.add(random_request(random, last_id, world.scheduler.config()));
      }
      maybe_abort();
      const SchedulerOutput plan = world.schedule();
      if (random.once_in(12)) {
        continue;  // as if the worker had failed: the plan is never updated
      }
      const GroupId failing = random.once_in(15) ? static_cast<GroupId>(random.between(1, 20)) : kNobody;
      const std::vector<SampledToken> tokens = world.run(plan, failing);
      maybe_abort();
      world.update(plan, tokens);
    }
    world.check_all_answered();
  }
}

}  // namespace fastpaged::test
