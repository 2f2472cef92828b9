// Prompts whose logprobs are wanted: chunks that fit the rows of logits there are, each position scored once.
#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"
#include "scheduler/examples.h"

namespace fastpaged::test {
namespace {

SchedulerConfig with_rows(std::int32_t max_num_seqs, std::int32_t max_num_rows) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = max_num_seqs;
  config.max_num_rows = max_num_rows;
  return config;
}

NewRequest scored(GroupId id, std::int32_t prompt, std::int32_t max_tokens) {
  NewRequest wanted = request(id, prompt, max_tokens);
  wanted.sampling.num_prompt_logprobs = 0;
  return wanted;
}

// Runs the scheduler to its end. Returns how many scores each event had.
std::vector<std::int32_t> drain(Scheduler& scheduler) {
  std::vector<std::int32_t> scores;
  while (scheduler.has_unfinished()) {
    for (const SequenceEvent& event : answer(scheduler, scheduler.schedule())) {
      scores.push_back(event.num_scores);
    }
  }
  return scores;
}

}  // namespace

TEST_CASE("a prompt with scores goes in chunks of the rows there are, and is complete with its first token") {
  Scheduler scheduler(with_rows(2, 5));  // its own, and three that are nobody's
  scheduler.add(scored(1, 10, 2));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 4}});
  CHECK(plan.num_rows == 4);
  CHECK(plan.num_samples == 0);
  const std::vector<SequenceEvent> events = answer(scheduler, plan);
  REQUIRE(events.size() == 1);
  CHECK(events[0].num_scores == 4);
  CHECK(events[0].score_row == 0);
  CHECK_FALSE(events[0].has_token);
  CHECK_FALSE(events[0].finished);
  CHECK(drain(scheduler) == std::vector{4, 1, 0});  // nine of ten have a next token in the prompt
}

TEST_CASE("a single row is enough to go on by a token a step") {
  Scheduler scheduler(with_rows(1, 1));
  scheduler.add(scored(1, 5, 1));
  scheduler.add(scored(2, 3, 1));
  CHECK(drain(scheduler) == std::vector{1, 1, 1, 1, 0, 1, 1, 0});
}

TEST_CASE("each seat keeps a row, and what is over goes to the oldest prompt with scores") {
  Scheduler scheduler(with_rows(4, 6));
  scheduler.add(request(1, 3, 9));
  scheduler.add(request(2, 3, 9));
  run_steps(scheduler, 1);
  scheduler.add(scored(3, 20, 1));
  scheduler.add(scored(4, 20, 1));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 3, 1}, {2, 3, 1}, {3, 0, 3}, {4, 0, 1}});
  CHECK(plan.num_rows == 6);
  answer(scheduler, plan);
  scheduler.abort(3);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 4, 1}, {2, 4, 1}, {4, 1, 3}});
  answer(scheduler, plan);
  scheduler.add(request(5, 30, 9));
  scheduler.abort(1);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{2, 5, 1}, {4, 4, 3}, {5, 0, 30}});
}

TEST_CASE(
    "a request that comes while a long prompt is scored is let in by the next step, and so is another scored one") {
  Scheduler scheduler(with_rows(8, 15));
  scheduler.add(scored(1, 100, 1));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 8}});
  answer(scheduler, plan);
  scheduler.add(request(2, 10, 4));
  scheduler.add(scored(3, 100, 1));
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 8, 8}, {2, 0, 10}, {3, 0, 1}});
  CHECK(plan.num_rows == 10);
  const std::vector<SequenceEvent> events = answer(scheduler, plan);
  REQUIRE(events.size() == 3);
  CHECK(events[1].has_token);
}

TEST_CASE("every seat may sample while a prompt is scored, and one without a row lends none") {
  SchedulerConfig config = with_rows(4, 6);
  config.policy.long_prefill_token_threshold = 5;
  Scheduler scheduler(config);
  scheduler.add(request(1, 3, 9));
  scheduler.add(request(2, 20, 9));  // of which nothing is sampled for three steps
  scheduler.add(scored(3, 20, 9));
  scheduler.add(request(4, 3, 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 3}, {2, 0, 5}, {3, 0, 3}, {4, 0, 3}});
  CHECK(plan.num_rows == 5);
}

TEST_CASE("a prompt without scores needs a row for its last token alone") {
  Scheduler scheduler(with_rows(4, 6));
  scheduler.add(request(1, 20, 9));
  scheduler.add(scored(2, 20, 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 20}, {2, 0, 3}});
}

TEST_CASE("what is scored needs no row when it is computed again") {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    SchedulerConfig config = with_rows(2, 5);
    config.num_host_blocks = 20;
    Scheduler scheduler(config);
    scheduler.add(scored(1, 11, 3));
    run_steps(scheduler, 2);  // 8 of them
    REQUIRE(scheduler.preempt(1, mode));
    SchedulerOutput plan = scheduler.schedule();
    const bool again = mode == PreemptionMode::kRecompute;
    CHECK(rows(plan) == (again ? Rows{{1, 0, 11}} : Rows{{1, 8, 3}}));
    CHECK(plan.num_rows == 3);
    const std::vector<SequenceEvent> events = answer(scheduler, plan);
    REQUIRE(events.size() == 1);
    CHECK(events[0].num_scores == 2);
    CHECK(events[0].sample_row == 2);
    CHECK(events[0].has_token);
    REQUIRE(scheduler.preempt(1, mode));
    plan = scheduler.schedule();
    CHECK(rows(plan) == (again ? Rows{{1, 0, 12}} : Rows{{1, 11, 1}}));
    CHECK(plan.num_rows == 1);
  }
}

TEST_CASE("scores of a plan that was never updated are owed again") {
  Scheduler scheduler(with_rows(2, 5));
  scheduler.add(scored(1, 5, 1));
  const SchedulerOutput forgotten = scheduler.schedule();
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(forgotten.scheduled == plan.scheduled);
  CHECK(plan.scheduled.at(0).num_scores == 4);
}

TEST_CASE("a prompt that must be computed whole is cut to the rows all the same, and nothing else is") {
  SchedulerConfig config = with_rows(4, 7);
  config.policy = SchedulerPolicy::paper_2023();
  config.max_num_batched_tokens = config.max_model_len;
  Scheduler scheduler(config);
  scheduler.add(scored(1, 20, 1));
  scheduler.add(request(2, 20, 1));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 4}, {2, 0, 20}});
}

TEST_CASE("a score that fails ends its request alone, and takes the others of the step with it") {
  Scheduler scheduler(with_rows(2, 6));
  scheduler.add(scored(1, 3, 2));
  scheduler.add(scored(2, 3, 2));
  const SchedulerOutput plan = scheduler.schedule();
  REQUIRE(plan.num_rows == 6);
  const std::vector<SampledToken> tokens = {{7, true}, {0, false}, {5, true}, {7, true}, {7, true}, {6, true}};
  const std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
  scheduler.check_invariants();
  REQUIRE(events.size() == 2);
  CHECK(events[0].finish_reason == FinishReason::kError);
  CHECK(events[0].group_finished);
  CHECK(events[0].num_scores == 0);
  CHECK_FALSE(events[0].has_token);
  CHECK(events[1].num_scores == 2);
  CHECK(events[1].score_row == 3);
  CHECK(events[1].sample_row == 5);
  CHECK(events[1].token_id == 6);
  CHECK_FALSE(events[1].finished);
}

TEST_CASE("a sample that fails leaves the scores that came with it") {
  Scheduler scheduler(with_rows(2, 4));
  scheduler.add(scored(1, 3, 2));
  const SchedulerOutput plan = scheduler.schedule();
  const std::vector<SequenceEvent> events =
      scheduler.update(plan, std::vector<SampledToken>{{7, true}, {7, true}, {0, false}});
  REQUIRE(events.size() == 1);
  CHECK(events[0].num_scores == 2);
  CHECK(events[0].finish_reason == FinishReason::kError);
}

TEST_CASE("a batch has a row for each score, with the token to score, and then the one to sample from") {
  Scheduler scheduler(with_rows(2, 8));
  BatchBuilder builder(scheduler);
  NewRequest wanted = scored(1, 1, 4);
  wanted.prompt_token_ids = {10, 11, 12};
  wanted.sampling.frequency_penalty = 1.0F;  // looks back when it samples
  scheduler.add(wanted);
  scheduler.add(request(2, 2, 4));
  const Batch& batch = builder.build(scheduler.schedule());
  CHECK(std::vector(batch.sample_rows.begin(), batch.sample_rows.end()) == std::vector{0, 1, 2, 4});
  const std::span<const SampleRequest> requests = builder.sample_requests();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].given == 11);
  CHECK(requests[1].given == 12);
  CHECK(requests[1].history.empty());
  CHECK(requests[1].params.num_prompt_logprobs == 0);
  CHECK(requests[2].given == std::nullopt);
  CHECK(requests[2].history.size() == 3);
  CHECK(requests[3].given == std::nullopt);
}

TEST_CASE("fewer rows than sequences are refused") {
  CHECK_THROWS_WITH_AS(Scheduler(with_rows(4, 3)), "max_num_rows must be 0 (no limit) or >= max_num_seqs = 4, got 3",
                       std::invalid_argument);
  NewRequest bad = request(1, 1, 1);
  bad.sampling.num_prompt_logprobs = -1;
  Scheduler scheduler(roomy());
  CHECK_THROWS_WITH_AS(scheduler.add(bad), "num_prompt_logprobs must be >= 0, got -1", std::invalid_argument);
}

}  // namespace fastpaged::test
