// Several samples of one prompt: drawn from one row of logits, then branches that share the prompt's blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "scheduler/examples.h"

namespace fastpaged::test {
namespace {

NewRequest samples(GroupId id, std::int32_t num_samples, std::int32_t prompt, std::int32_t max_tokens,
                   std::vector<TokenId> stops = {}) {
  NewRequest wanted = request(id, prompt, max_tokens, std::move(stops));
  wanted.num_samples = num_samples;
  return wanted;
}

std::vector<SequenceEvent> answer_each(Scheduler& scheduler, const std::vector<SampledToken>& tokens) {
  std::vector<SequenceEvent> events = scheduler.update(scheduler.schedule(), tokens);
  scheduler.check_invariants();
  return events;
}

std::int64_t num_held(const Scheduler& scheduler) {
  return scheduler.kv_cache().num_blocks() - scheduler.kv_cache().num_free_blocks();
}

std::string refusal(Scheduler& scheduler, const NewRequest& request) {
  try {
    scheduler.add(request);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::int32_t> branches(const Scheduler& scheduler, GroupId id) {
  std::vector<std::int32_t> branches;
  for (const auto& sequence : scheduler.group(id).sequences) {
    branches.push_back(sequence->branch());
  }
  return branches;
}

}  // namespace

TEST_CASE("the last token of the prompt has one row of logits, from which every sample draws its first token") {
  Scheduler scheduler(roomy());
  BatchBuilder builder(scheduler);
  scheduler.add(request(1, 2, 9));
  NewRequest wanted = samples(2, 3, 6, 9);
  wanted.sampling.seed = 71;
  wanted.sampling.presence_penalty = 1.0F;  // looks back when it samples
  scheduler.add(wanted);
  scheduler.add(request(3, 1, 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 2}, {2, 0, 6}, {3, 0, 1}});
  CHECK(plan.num_samples == 3);
  CHECK(plan.num_rows == 3);
  CHECK(plan.num_results == 5);
  const Batch& batch = builder.build(plan);
  CHECK(std::vector(batch.sample_rows.begin(), batch.sample_rows.end()) == std::vector{1, 7, 8});
  const std::span<const SampleRequest> requests = builder.sample_requests();
  REQUIRE(requests.size() == 5);
  const std::vector<std::int32_t> expected_rows = {0, 1, 1, 1, 2};
  const std::vector<std::int32_t> expected_indices = {0, 0, 1, 2, 0};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(requests[i].row == expected_rows[i]);
    CHECK(requests[i].sample_index == expected_indices[i]);
    CHECK(requests[i].position == (i == 0 ? 2 : i == 4 ? 1 : 6));
    CHECK(requests[i].history.size() == (i == 0 || i == 4 ? 0 : 6));
  }

  const std::vector<SequenceEvent> events =
      scheduler.update(plan, std::vector<SampledToken>{{10}, {20}, {21}, {22}, {30}});
  REQUIRE(events.size() == 5);
  for (std::int32_t i = 0; i < 3; ++i) {
    const SequenceEvent& event = events[1 + i];
    CHECK(event.kind == EventKind::kSample);
    CHECK(event.group_id == 2);
    CHECK(event.sequence_id == (i == 0 ? 1 : 2 + i));  // 2 is the third request's
    CHECK(event.parent_id == 1);
    CHECK(event.branch == i);
    CHECK(event.sample_row == 1 + i);
    CHECK(event.token_id == 20 + i);
    CHECK_FALSE(event.finished);
  }
  CHECK(events[4].sample_row == 4);

  builder.build(scheduler.schedule());
  REQUIRE(builder.sample_requests().size() == 5);
  for (std::int32_t i = 0; i < 3; ++i) {
    const SampleRequest& later = builder.sample_requests()[1 + i];
    CHECK(later.row == 1 + i);
    CHECK(later.sample_index == i);
    CHECK(later.params.seed == 71);
    CHECK(later.num_output_tokens == 1);
    CHECK(later.history.back() == 20 + i);
  }
}

// The exact formula: full blocks of the prompt once; of each branch all others, and the one in which the prompt ends.
// It is copied by all branches but the last, in the first step in which they write.
TEST_CASE("samples hold the prompt's full blocks once, and copy the partial one once less than there are samples") {
  constexpr std::int32_t kMaxTokens = 7;
  for (const std::int32_t block_size : {1, 2, 3, 4, 16}) {
    for (std::int32_t prompt = 1; prompt <= 3 * block_size + 1; ++prompt) {
      for (std::int32_t n = 1; n <= 8; ++n) {
        SchedulerConfig config = roomy();
        config.block_size = block_size;
        config.max_num_batched_tokens = 8 + prompt % 5;  // some prompts in chunks
        Scheduler scheduler(config);
        scheduler.add(samples(1, n, prompt, kMaxTokens));
        const auto blocks = [&](std::int32_t tokens) { return scheduler.kv_cache().blocks_for(tokens); };
        std::int32_t num_answered = 0;
        while (scheduler.has_unfinished()) {
          const bool prefill = num_answered == 0;
          const SchedulerOutput plan = scheduler.schedule();
          const std::int32_t full = prompt / block_size;
          const bool first_write = num_answered == 1 && prompt % block_size != 0;
          REQUIRE(num_blocks(plan, CopyKind::kCopyOnWrite) == (first_write ? n - 1 : 0));
          REQUIRE(plan.num_rows == (prefill ? plan.num_samples : n));
          REQUIRE(plan.num_results == (prefill ? plan.num_samples * n : n));
          const std::int32_t computed = plan.scheduled[0].first_token + plan.scheduled[0].num_tokens;
          REQUIRE(num_held(scheduler) == (prefill ? blocks(computed) : full + n * (blocks(computed) - full)));
          const std::size_t num_events = answer(scheduler, plan).size();
          REQUIRE(num_events == static_cast<std::size_t>(plan.num_results));
          num_answered += plan.num_samples > 0 ? 1 : 0;
        }
        REQUIRE(num_answered == kMaxTokens);
        REQUIRE(num_held(scheduler) == 0);
      }
    }
  }
}

TEST_CASE("a sample that its first token ends is never a branch, and is told of by an id of its own") {
  Scheduler scheduler(roomy());
  scheduler.add(samples(1, 4, 6, 9, {5}));
  const std::vector<SequenceEvent> events = answer_each(scheduler, {{5}, {6}, {5}, {7}});
  REQUIRE(events.size() == 4);
  for (const SequenceEvent& event : events) {
    CHECK(event.finished == (event.branch % 2 == 0));
    CHECK(event.sequence_id == static_cast<SequenceId>(event.branch));
    CHECK(event.has_token);
    CHECK_FALSE(event.group_finished);
  }
  CHECK(branches(scheduler, 1) == std::vector{1, 3});
  CHECK(num_held(scheduler) == 2);
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(num_blocks(plan, CopyKind::kCopyOnWrite) == 1);
  CHECK(plan.num_results == 2);
  CHECK(scheduler.update(plan, std::vector<SampledToken>{{5}, {6}})[0].parent_id == 1);
  CHECK(branches(scheduler, 1) == std::vector{3});
  const std::vector<SequenceEvent> last = answer_each(scheduler, {{5}});
  CHECK(last[0].group_finished);
  CHECK(last[0].branch == 3);
  CHECK(num_held(scheduler) == 0);
}

TEST_CASE("a single sample that goes on writes into the prompt's last block: nothing is copied") {
  Scheduler scheduler(roomy());
  scheduler.add(samples(1, 3, 6, 9, {5}));
  answer_each(scheduler, {{5}, {5}, {6}});
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.copies.empty());
  CHECK(num_held(scheduler) == 2);
}

TEST_CASE("samples of one token end together, without ever being branches") {
  Scheduler scheduler(roomy());
  scheduler.add(samples(1, 8, 6, 1));
  const std::vector<SequenceEvent> events = answer(scheduler, scheduler.schedule());
  REQUIRE(events.size() == 8);
  for (const SequenceEvent& event : events) {
    CHECK(event.finish_reason == FinishReason::kLength);
    CHECK(event.group_finished == (event.branch == 7));
  }
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(num_held(scheduler) == 0);
}

TEST_CASE("a row without a token to draw fails every sample; scores that fail do so too") {
  for (const bool scored : {true, false}) {
    Scheduler scheduler(roomy());
    NewRequest wanted = samples(1, 3, 3, 9);
    wanted.sampling.num_prompt_logprobs = 0;
    scheduler.add(wanted);
    const std::vector<SequenceEvent> events =
        answer_each(scheduler, {{0, true}, {0, scored}, {7, !scored}, {7, !scored}, {7, !scored}});
    REQUIRE(events.size() == 3);
    for (const SequenceEvent& event : events) {
      CHECK(event.finish_reason == FinishReason::kError);
      CHECK_FALSE(event.has_token);
      CHECK(event.num_scores == (scored && event.branch == 0 ? 2 : 0));
      CHECK(event.group_finished == (event.branch == 2));
    }
    CHECK_FALSE(scheduler.has_unfinished());
  }
}

TEST_CASE("the prompt's logprobs come once, with the first sample") {
  Scheduler scheduler(roomy());
  BatchBuilder builder(scheduler);
  NewRequest wanted = samples(1, 2, 3, 9);
  wanted.sampling.num_prompt_logprobs = 0;
  scheduler.add(wanted);
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.num_rows == 3);
  CHECK(plan.num_results == 4);
  builder.build(plan);
  std::vector<std::int32_t> looked_at;
  for (const SampleRequest& request : builder.sample_requests()) {
    looked_at.push_back(request.row);
  }
  CHECK(looked_at == std::vector{0, 1, 2, 2});
  const std::vector<SequenceEvent> events = answer(scheduler, plan);
  REQUIRE(events.size() == 2);
  CHECK(events[0].score_row == 0);
  CHECK(events[0].num_scores == 2);
  CHECK(events[0].sample_row == 2);
  CHECK(events[1].num_scores == 0);
  CHECK(events[1].sample_row == 3);
}

TEST_CASE("samples that have not parted count as running sequences all the same") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 5;
  config.max_num_batched_tokens = 6;
  Scheduler scheduler(config);
  scheduler.add(samples(1, 3, 9, 9));
  scheduler.add(samples(2, 3, 1, 9));
  scheduler.add(samples(3, 2, 1, 2));
  const auto step = [&] {
    const SchedulerOutput plan = scheduler.schedule();
    answer(scheduler, plan);
    return rows(plan);
  };
  CHECK(step() == Rows{{1, 0, 6}});
  CHECK(step() == Rows{{1, 6, 3}});  // five in all are not enough for the second request
  CHECK(scheduler.num_waiting() == 2);
  CHECK(scheduler.finish(1, 0));
  CHECK(step() == Rows{{1, 9, 1}, {1, 9, 1}, {2, 0, 1}});
  CHECK(scheduler.group(2).num_sequences() == 3);
  CHECK(scheduler.abort(2));
  CHECK(step() == Rows{{1, 10, 1}, {1, 10, 1}, {3, 0, 1}});
}

TEST_CASE("more samples than can run together are refused") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 5;
  config.max_num_batched_tokens = 4;
  Scheduler scheduler(config);
  const std::string allowed = "num_samples must be <= max_num_seqs = 5 and <= max_num_batched_tokens = 4, got ";
  CHECK(refusal(scheduler, samples(1, 5, 2, 9)) == allowed + "5");
  CHECK(refusal(scheduler, samples(1, 6, 2, 9)) == allowed + "6");
  CHECK(refusal(scheduler, samples(1, 0, 2, 9)) == "num_samples must be >= 1, got 0");
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(refusal(scheduler, samples(1, 4, 2, 9)) == "accepted");
  CHECK(refusal(scheduler, samples(2, 1, 2, 9)) == "accepted");
}

TEST_CASE("before its samples part a request cannot be forked; then a new branch is the next sample") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 3;
  Scheduler scheduler(config);
  scheduler.add(samples(1, 3, 4, 9));
  run_steps(scheduler, 1);  // three of four tokens: the last one is all that is left
  CHECK_THROWS_WITH_AS(static_cast<void>(scheduler.fork(1, 0)),
                       "sequence 0 of group_id 1 cannot be forked before the 3 samples of its request have parted",
                       std::invalid_argument);
  run_steps(scheduler, 1);
  CHECK(scheduler.finish(1, 2));
  CHECK(scheduler.fork(1, 1) == 3);
  CHECK(branches(scheduler, 1) == std::vector{0, 1, 3});
}

TEST_CASE("preempted in the middle of its prompt, a request is one sequence still") {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    SchedulerConfig config = roomy();
    config.max_num_batched_tokens = 5;
    config.num_host_blocks = 10;
    Scheduler scheduler(config);
    scheduler.add(samples(1, 4, 9, 9));
    answer(scheduler, scheduler.schedule());
    CHECK(scheduler.preempt(1, mode));
    SchedulerOutput plan = scheduler.schedule();
    const bool swapped = mode == PreemptionMode::kSwap;
    CHECK(num_blocks(plan, CopyKind::kSwapOut) == (swapped ? 2 : 0));
    CHECK(rows(plan) == (swapped ? Rows{{1, 5, 4}} : Rows{{1, 0, 5}}));
    while (plan.num_samples == 0) {
      answer(scheduler, plan);
      plan = scheduler.schedule();
    }
    CHECK(plan.num_results == 4);
    CHECK(answer(scheduler, plan).size() == 4);
    CHECK(branches(scheduler, 1) == std::vector{0, 1, 2, 3});
  }
}

TEST_CASE("preempted after its samples parted, a request comes back as branches and draws nothing again") {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    SchedulerConfig config = roomy();
    config.num_host_blocks = 10;
    Scheduler scheduler(config);
    scheduler.add(samples(1, 3, 6, 9));
    run_steps(scheduler, 2);  // each branch has two tokens, seven are computed
    CHECK(num_held(scheduler) == 1 + 3);
    CHECK(scheduler.preempt(1, mode));
    SchedulerOutput plan = scheduler.schedule();
    std::int32_t num_steps = 1;
    while (plan.num_samples == 0) {
      CHECK(plan.num_results == 0);
      CHECK(answer(scheduler, plan).empty());
      plan = scheduler.schedule();
      ++num_steps;
    }
    CHECK(num_steps == (mode == PreemptionMode::kRecompute ? 3 : 1));  // the first branch, then what is the others' own
    CHECK(rows(plan) == Rows{{1, 7, 1}, {1, 7, 1}, {1, 7, 1}});
    CHECK(plan.num_results == 3);
    CHECK(num_held(scheduler) == 1 + 3);
    const std::vector<SequenceEvent> events = answer(scheduler, plan);
    REQUIRE(events.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(events[i].branch == static_cast<std::int32_t>(i));
      CHECK(events[i].parent_id == events[i].sequence_id);
    }
  }
}

TEST_CASE("a request that is aborted while its samples are drawn leaves nothing behind") {
  Scheduler scheduler(roomy());
  scheduler.add(samples(1, 3, 6, 9));
  scheduler.add(request(2, 1, 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(scheduler.finish(1, 0));
  const std::vector<SequenceEvent> events = answer(scheduler, plan);
  REQUIRE(events.size() == 1);
  CHECK(events[0].group_id == 2);
  CHECK(events[0].sample_row == 3);
  CHECK(num_held(scheduler) == 1);
}

TEST_CASE("a sample at the end of the pool ends with its length, by its number; the others go on") {
  SchedulerConfig config = roomy();
  config.num_blocks = 3;
  Scheduler scheduler(config);
  scheduler.add(samples(1, 3, 7, 9));
  run_steps(scheduler, 1);
  const SchedulerOutput plan = scheduler.schedule();  // of the partial block one may have a copy, one the block itself
  REQUIRE(plan.ended.size() == 1);
  CHECK(plan.ended[0].branch == 1);
  CHECK(plan.ended[0].finish_reason == FinishReason::kLength);
  CHECK(plan.preempted.empty());
  CHECK(plan.num_results == 2);
  answer(scheduler, plan);
  CHECK(branches(scheduler, 1) == std::vector{0, 2});
}

}  // namespace fastpaged::test
