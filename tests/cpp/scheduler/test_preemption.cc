// Who has to go, where to, and how it comes back; and that whoever leaves for good leaves nothing behind.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/examples.h"

namespace fastpaged::test {
namespace {

using Ids = std::vector<GroupId>;

// Three blocks of four tokens for two requests that want two each in the end.
SchedulerConfig scarce(PreemptionMode mode, std::int32_t num_host_blocks) {
  SchedulerConfig config = roomy();
  config.num_blocks = 3;
  config.num_host_blocks = num_host_blocks;
  config.policy.preemption_mode = mode;
  return config;
}

void check_empty(const Scheduler& scheduler) {
  const KVCacheManager& kv_cache = scheduler.kv_cache();
  CHECK(kv_cache.num_free_blocks() == kv_cache.num_blocks());
  CHECK(kv_cache.host_pool().num_free() == kv_cache.host_pool().num_blocks());
  CHECK(scheduler.num_waiting() + scheduler.num_running() + scheduler.num_swapped() == 0);
  CHECK_FALSE(scheduler.has_unfinished());
}

std::string refusal(const SchedulerPolicy& policy) {
  try {
    SchedulerConfig config = roomy();
    config.policy = policy;
    const Scheduler scheduler(config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("swapping: the youngest goes to the host, and comes back before a later arrival is let in") {
  Scheduler scheduler(scarce(PreemptionMode::kSwap, 4));
  scheduler.add(request(1, 4, 3));
  scheduler.add(request(2, 5, 9));
  run_steps(scheduler, 1);
  scheduler.add(request(3, 1, 9));
  SchedulerOutput plan = scheduler.schedule();  // 1 needs a second block
  CHECK(plan.preempted == Ids{2});
  CHECK(plan.swapped_out == Ids{2});
  CHECK(plan.copies == std::vector<BlockCopy>{{CopyKind::kSwapOut, 1, 0, 2}});  // neighbours, in one piece
  CHECK(rows(plan) == Rows{{1, 4, 1}});
  CHECK(scheduler.num_swapped() == 1);
  CHECK(scheduler.group(2).sequences[0]->num_computed_tokens() == 5);
  answer(scheduler, plan);
  run_steps(scheduler, 1);  // 1 has its three tokens; one free block is too few for 2, and 3 is behind it
  CHECK(scheduler.num_waiting() == 1);
  plan = scheduler.schedule();
  CHECK(plan.swapped_in == Ids{2});
  CHECK(num_blocks(plan, CopyKind::kSwapIn) == 2);
  CHECK(rows(plan) == Rows{{2, 5, 1}, {3, 0, 1}});
  CHECK(scheduler.stats().num_tokens_recomputed == 0);
  CHECK(scheduler.stats().num_blocks_swapped_out == 2);
  CHECK(scheduler.stats().num_blocks_swapped_in == 2);
}

TEST_CASE("where the host pool has no room, swapping becomes recomputing") {
  Scheduler scheduler(scarce(PreemptionMode::kSwap, 1));
  scheduler.add(request(1, 4, 3));
  scheduler.add(request(2, 5, 9));
  run_steps(scheduler, 1);
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == Ids{2});
  CHECK(plan.swapped_out.empty());
  CHECK(plan.copies.empty());
  CHECK(scheduler.num_waiting() == 1);
  CHECK(scheduler.kv_cache().host_pool().num_free() == 1);
}

TEST_CASE("recomputing computes prompt and output so far as one prompt, in chunks, and counts it") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 5;
  Scheduler scheduler(config);
  scheduler.add(request(1, 5, 9));
  run_steps(scheduler, 3);  // seven computed
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == Ids{1});
  CHECK(rows(plan) == Rows{{1, 0, 5}});
  CHECK(plan.num_samples == 0);
  answer(scheduler, plan);
  CHECK(scheduler.stats().num_tokens_recomputed == 5);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 5, 3}});
  CHECK(plan.num_samples == 1);
  answer(scheduler, plan);
  CHECK(scheduler.stats().num_tokens_recomputed == 7);
  CHECK(scheduler.group(1).sequences[0]->num_output_tokens() == 4);
  CHECK(scheduler.group(1).num_preemptions == 1);
}

TEST_CASE("by branches: one sequence is recomputed, several are swapped") {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 10;
  Scheduler scheduler(config);
  scheduler.add(request(1, 4, 9));
  scheduler.add(request(2, 4, 9));
  run_steps(scheduler, 1);
  static_cast<void>(scheduler.fork(2, 1));
  CHECK(scheduler.preempt(1, PreemptionMode::kByBranches));
  CHECK(scheduler.preempt(2, PreemptionMode::kByBranches));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == Ids{1, 2});
  CHECK(plan.swapped_out == Ids{2});
}

TEST_CASE("a wish to preempt is for the next step only, and for who runs then") {
  Scheduler scheduler(roomy());
  CHECK_FALSE(scheduler.preempt(1, PreemptionMode::kRecompute));
  scheduler.add(request(1, 4, 9));
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));  // it waits still
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted.empty());
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(plan.preempted.empty());
  CHECK(rows(plan) == Rows{{1, 4, 1}});
  answer(scheduler, plan);
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  CHECK(scheduler.abort(1));
  scheduler.add(request(1, 4, 9));
  CHECK(scheduler.schedule().preempted.empty());
}

TEST_CASE("a forgotten plan's copies may not have been run: what they touched is recomputed, nothing else") {
  SchedulerConfig config = scarce(PreemptionMode::kSwap, 4);
  config.num_blocks = 4;
  Scheduler scheduler(config);
  scheduler.add(request(1, 4, 9));
  scheduler.add(request(2, 4, 9));
  scheduler.add(request(3, 4, 9));
  run_steps(scheduler, 1);
  SchedulerOutput plan = scheduler.schedule();  // 1 takes the last block, 2 that of 3
  CHECK(plan.swapped_out == Ids{3});
  plan = scheduler.schedule();
  CHECK(scheduler.num_swapped() == 0);
  CHECK(scheduler.num_waiting() == 1);
  CHECK(scheduler.kv_cache().host_pool().num_free() == 4);
  CHECK(plan.copies.empty());
  CHECK(rows(plan) == Rows{{1, 4, 1}, {2, 4, 1}});  // the blocks they were given are theirs
  CHECK(scheduler.stats().num_preemptions == 1);
}

TEST_CASE("a lone sequence at the pool's end never makes room for itself at others' cost") {
  Scheduler scheduler(scarce(PreemptionMode::kSwap, 4));
  scheduler.add(request(1, 10, 100));
  scheduler.add(request(2, 1, 100));
  run_steps(scheduler, 3);  // 12 computed tokens: the pool is full
  const std::vector<SequenceEvent> events = answer(scheduler, scheduler.schedule());
  REQUIRE(events.size() == 2);
  CHECK(events[0].group_id == 1);
  CHECK(events[0].finish_reason == FinishReason::kLength);
  CHECK_FALSE(events[0].has_token);
  CHECK(scheduler.stats().num_preemptions == 0);
  CHECK(scheduler.group(2).sequences[0]->num_output_tokens() == 1);  // let in by the step that ended 1
}

TEST_CASE("nor does one that is recomputed at the pool's end beside somebody let in meanwhile") {
  SchedulerConfig config = roomy();
  config.num_blocks = 4;
  config.block_size = 2;
  config.max_num_batched_tokens = 6;
  config.policy.long_prefill_token_threshold = 5;
  config.policy.counts_running_needs = false;
  Scheduler scheduler(config);
  scheduler.add(request(1, 1, 100));
  run_steps(scheduler, 8);  // eight tokens computed, the ninth is known
  scheduler.add(request(2, 1, 9));
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 5}, {2, 0, 1}});
  answer(scheduler, plan);
  plan = scheduler.schedule();  // 1 would need five blocks
  REQUIRE(plan.ended.size() == 1);
  CHECK(plan.ended[0].group_id == 1);
  CHECK(plan.preempted.empty());
  CHECK(rows(plan) == Rows{{2, 1, 1}});
}

TEST_CASE("the watermark keeps blocks free when a group is let in, unless it would run alone") {
  SchedulerConfig config = roomy();
  config.num_blocks = 4;
  config.policy.watermark = 0.5;
  Scheduler scheduler(config);
  scheduler.add(request(1, 12, 9));  // three of four blocks
  scheduler.add(request(2, 1, 9));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 12}});
  scheduler.reset();
  scheduler.add(request(3, 3, 9));
  scheduler.add(request(4, 3, 9));
  scheduler.add(request(5, 3, 9));
  CHECK(rows(scheduler.schedule()) == Rows{{3, 0, 3}, {4, 0, 3}});
}

TEST_CASE("a policy may let in without regard to what running prefills still need") {
  SchedulerConfig config = roomy();
  config.num_blocks = 5;
  config.policy.long_prefill_token_threshold = 4;
  config.policy.counts_running_needs = false;
  Scheduler scheduler(config);
  scheduler.add(request(1, 16, 2));
  scheduler.add(request(2, 5, 2));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 4}, {2, 0, 4}});
}

TEST_CASE("a policy says which field is wrong") {
  const auto with = [](auto member, auto value) {
    SchedulerPolicy policy;
    policy.*member = value;
    return refusal(policy);
  };
  CHECK(with(&SchedulerPolicy::watermark, 1.0) == "watermark must be in [0, 1), got 1.000000");
  CHECK(with(&SchedulerPolicy::watermark, -0.5) == "watermark must be in [0, 1), got -0.500000");
  CHECK(with(&SchedulerPolicy::long_prefill_token_threshold, -1) ==
        "long_prefill_token_threshold must be >= 0, got -1");
  CHECK(with(&SchedulerPolicy::chunked_prefill, false) ==
        "max_num_batched_tokens must be >= max_model_len = 200 without chunked_prefill, got 64");
  SchedulerPolicy policy;
  policy.chunked_prefill = false;
  policy.long_prefill_token_threshold = 3;
  CHECK(refusal(policy) == "long_prefill_token_threshold must be 0 without chunked_prefill, got 3");
}

TEST_CASE("an abort frees everything at once, whatever state the request is in") {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 20;
  config.max_num_batched_tokens = 10;
  Scheduler scheduler(config);
  SUBCASE("waiting") {
    scheduler.add(request(1, 30, 9));
  }
  SUBCASE("between two chunks of its prompt") {
    scheduler.add(request(1, 30, 9));
    run_steps(scheduler, 2);
  }
  SUBCASE("running, with several branches") {
    scheduler.add(request(1, 9, 9));
    run_steps(scheduler, 2);
    static_cast<void>(scheduler.fork(1, 0));
    run_steps(scheduler, 1);
  }
  SUBCASE("its step is out") {
    scheduler.add(request(1, 9, 9));
    run_steps(scheduler, 2);
    const SchedulerOutput plan = scheduler.schedule();
    CHECK(scheduler.abort(1));
    check_empty(scheduler);
    CHECK(answer(scheduler, plan).empty());
    scheduler.add(request(1, 9, 9));
  }
  SUBCASE("a tree is being rebuilt") {
    scheduler.add(request(1, 13, 9));
    run_steps(scheduler, 3);
    static_cast<void>(scheduler.fork(1, 0));
    static_cast<void>(scheduler.fork(1, 0));
    run_steps(scheduler, 2);
    CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
    run_steps(scheduler, 1);
    CHECK(scheduler.group(1).sequences[1]->rebuild().from != nullptr);
  }
  CHECK(scheduler.abort(1));
  scheduler.check_invariants();
  check_empty(scheduler);
}

TEST_CASE("an abort of a swapped request gives the host its blocks back, also while the step that swaps it is out") {
  Scheduler scheduler(scarce(PreemptionMode::kSwap, 4));
  scheduler.add(request(1, 4, 3));
  scheduler.add(request(2, 5, 9));
  run_steps(scheduler, 1);
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(scheduler.num_swapped() == 1);
  CHECK(scheduler.kv_cache().host_pool().num_free() == 2);
  SUBCASE("while it is out") {}
  SUBCASE("afterwards") {
    answer(scheduler, plan);
  }
  CHECK(scheduler.abort(2));
  scheduler.check_invariants();
  CHECK(scheduler.kv_cache().host_pool().num_free() == 4);
  CHECK(scheduler.abort(1));
  check_empty(scheduler);
}

TEST_CASE("a reset ends everything, wherever it is, and the next request starts afresh") {
  SchedulerConfig config = scarce(PreemptionMode::kSwap, 4);
  Scheduler scheduler(config);
  scheduler.add(request(1, 4, 9));
  scheduler.add(request(2, 5, 9));
  run_steps(scheduler, 1);
  scheduler.add(request(3, 1, 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(scheduler.num_swapped() == 1);
  CHECK(scheduler.preempt(1, PreemptionMode::kSwap));
  scheduler.reset();
  scheduler.check_invariants();
  check_empty(scheduler);
  CHECK_THROWS_AS(answer(scheduler, plan), std::invalid_argument);
  scheduler.add(request(1, 4, 9));
  const SchedulerOutput next = scheduler.schedule();
  CHECK(next.preempted.empty());
  CHECK(next.copies.empty());
  CHECK(rows(next) == Rows{{1, 0, 4}});
}

}  // namespace fastpaged::test
