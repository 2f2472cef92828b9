// What a request takes from the prefix cache, what it leaves there, and who may have it.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "scheduler/prefix_examples.h"

namespace fastpaged::test {

TEST_CASE("a prompt takes whole blocks, then the beginning of one, and computes the rest: every length") {
  for (const bool same_to_the_end : {false, true}) {
    for (std::int32_t common = 1; common <= 16; ++common) {
      CAPTURE(same_to_the_end);
      CAPTURE(common);
      Scheduler scheduler(caching());
      warm(scheduler, 1, counting(100, 13));  // three full blocks; the fourth holds one token
      const Tokens prompt = same_to_the_end ? counting(100, common) : joined(counting(100, common), counting(50, 5));
      scheduler.add(text(2, prompt));
      const SchedulerOutput plan = scheduler.schedule();
      scheduler.check_invariants();
      const std::int32_t found = std::min({common, 12, static_cast<std::int32_t>(prompt.size()) - 1});
      CHECK(plan.cached == Cached{{2, found}});
      CHECK(rows(plan) == Rows{{2, found, static_cast<std::int32_t>(prompt.size()) - found}});
      CHECK(num_blocks(plan, CopyKind::kCopyOnWrite) == (found % 4 == 0 ? 0 : 1));
      const std::vector<BlockId> held = blocks_of(scheduler, 2);
      CHECK(std::equal(held.begin(), held.begin() + found / 4, Tokens{0, 1, 2}.begin()));
      CHECK(scheduler.stats().num_prefix_tokens_looked_up == 13 + static_cast<std::int64_t>(prompt.size()));
      CHECK(scheduler.stats().num_prefix_tokens_found == found);
      CHECK(scheduler.stats().num_partial_prefix_blocks == (found % 4 == 0 ? 0 : 1));
      BatchBuilder builder(scheduler);
      static_cast<void>(builder.build(plan));  // writes into no block that is cached
      answer(scheduler, plan);
      CHECK_FALSE(scheduler.has_unfinished());
      CHECK(scheduler.kv_cache().num_free_blocks() == 100);
    }
  }
}

TEST_CASE("a block of one token is found whole or not at all") {
  SchedulerConfig config = caching();
  config.block_size = 1;
  Scheduler scheduler(config);
  warm(scheduler, 1, counting(100, 5));
  scheduler.add(text(2, counting(100, 4)));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{2, 3}});
  CHECK(plan.copies.empty());
}

TEST_CASE("without prefix caching nothing is found, and each request is reported once with nothing") {
  SchedulerConfig config = roomy();
  Scheduler scheduler(config);
  scheduler.add(text(1, counting(100, 9)));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{1, 0}});
  answer(scheduler, plan);
  scheduler.add(text(2, counting(100, 9)));
  CHECK(scheduler.schedule().cached == Cached{{2, 0}});
  CHECK(scheduler.kv_cache().device_pool().cached_free_blocks().empty());
  CHECK(scheduler.stats().num_prefix_tokens_looked_up == 0);
}

TEST_CASE("an answer is found like a prompt, by whoever goes on from it") {
  Scheduler scheduler(caching());
  scheduler.add(text(1, counting(100, 6), 6));
  while (scheduler.has_unfinished()) {
    answer(scheduler, scheduler.schedule(), 9);
  }
  // Eleven of its twelve tokens are computed: the last was sampled only.
  const Tokens so_far = joined(counting(100, 6), {9, 9, 9, 9, 9, 9});
  scheduler.add(text(2, joined(so_far, counting(50, 3))));
  CHECK(scheduler.schedule().cached == Cached{{2, 8}});
}

TEST_CASE("nothing is shared between two roots, nor with who asks for nothing") {
  Scheduler scheduler(caching());
  warm(scheduler, 1, counting(100, 9), "tenant");
  const auto found = [&](GroupId id, std::string root, bool skip) {
    NewRequest request = text(id, counting(100, 9));
    request.cache_root = std::move(root);
    request.skip_prefix_cache = skip;
    scheduler.add(std::move(request));
    const SchedulerOutput plan = scheduler.schedule();
    answer(scheduler, plan);
    return plan.cached;
  };
  CHECK(found(2, "", false) == Cached{{2, 0}});
  CHECK(found(3, "another", true) == Cached{{3, 0}});
  CHECK(found(4, "another", false) == Cached{{4, 8}});  // what the one before computed
  CHECK(found(5, "tenant", true) == Cached{{5, 0}});
  CHECK(found(6, "tenant", false) == Cached{{6, 8}});
  CHECK(scheduler.stats().num_prefix_tokens_looked_up == 4 * 9);
  CHECK(scheduler.stats().num_prefix_tokens_found == 2 * 8);
}

TEST_CASE("two that compute the same come to hold the same blocks") {
  Scheduler scheduler(caching());
  scheduler.add(text(1, counting(100, 10), 9));
  NewRequest second = text(2, counting(100, 10), 9);
  second.skip_prefix_cache = true;
  scheduler.add(std::move(second));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.num_tokens == 20);
  CHECK(scheduler.kv_cache().num_free_blocks() == 94);
  answer(scheduler, plan);
  CHECK(scheduler.kv_cache().num_free_blocks() == 96);
  CHECK(scheduler.num_logical_blocks() == 6);
  CHECK(scheduler.num_physical_blocks() == 4);
  const std::vector<BlockId> first = blocks_of(scheduler, 1);
  const std::vector<BlockId> second_blocks = blocks_of(scheduler, 2);
  CHECK(std::equal(first.begin(), first.begin() + 2, second_blocks.begin()));
}

TEST_CASE("a prompt is published chunk by chunk, before it is whole") {
  SchedulerConfig config = caching();
  config.max_num_batched_tokens = 9;
  config.policy.long_prefill_token_threshold = 5;
  Scheduler scheduler(config);
  scheduler.add(text(1, counting(100, 20)));
  run_steps(scheduler, 1);
  scheduler.add(text(2, joined(counting(100, 4), counting(50, 2))));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{2, 4}});
  CHECK(rows(plan) == Rows{{1, 5, 5}, {2, 4, 2}});
}

TEST_CASE(
    "cached blocks go when there is no other, the least recently used first, the end of a text before its front") {
  Scheduler scheduler(caching(8));
  warm(scheduler, 1, counting(100, 9));  // blocks 0 and 1, then half of 2
  warm(scheduler, 2, counting(200, 9));
  warm(scheduler, 3, joined(counting(100, 8), counting(50, 1)));  // uses the first text again
  CHECK(scheduler.kv_cache().device_pool().free_blocks().size() == 4);
  CHECK(scheduler.kv_cache().device_pool().cached_free_blocks() == std::vector<BlockId>{3, 2, 1, 0});
  scheduler.add(text(4, counting(300, 20)));  // five blocks
  run_steps(scheduler, 1);
  CHECK(scheduler.stats().num_cached_blocks_evicted == 1);
  scheduler.add(text(5, counting(200, 9)));
  CHECK(scheduler.schedule().cached == Cached{{5, 4}});
}

TEST_CASE("prompt logprobs come from computed tokens alone; what is scored may be found again") {
  Scheduler scheduler(caching());
  warm(scheduler, 1, counting(100, 13));
  NewRequest request = text(2, counting(100, 13), 9);
  request.sampling.num_prompt_logprobs = 0;
  scheduler.add(std::move(request));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{2, 0}});
  CHECK(plan.num_rows == 13);
  answer(scheduler, plan);
  scheduler.preempt(2, PreemptionMode::kRecompute);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{2, 12, 2}});  // all is scored: twelve of its fourteen tokens are its own full blocks
  CHECK(plan.num_rows == 1);
  CHECK(plan.cached.empty());
  CHECK(scheduler.stats().num_prefix_tokens_found == 0);
}

TEST_CASE("a prompt that is scored in part takes no more than that part") {
  SchedulerConfig config = caching();
  config.max_num_seqs = 2;
  config.max_num_rows = 8;  // six above those of sequences
  Scheduler scheduler(config);
  warm(scheduler, 1, counting(100, 17));
  NewRequest request = text(2, counting(100, 17), 9);
  request.sampling.num_prompt_logprobs = 0;
  scheduler.add(std::move(request));
  answer(scheduler, scheduler.schedule());
  REQUIRE(scheduler.group(2).sequences[0]->num_scored() == 7);
  scheduler.preempt(2, PreemptionMode::kRecompute);
  const SchedulerOutput plan = scheduler.schedule();
  REQUIRE(plan.scheduled.size() == 1);
  CHECK(plan.scheduled[0].first_token == 7);  // a block, and three tokens of the next
  CHECK(plan.scheduled[0].num_scores == 7);
}

TEST_CASE("what a failed request computed, or had from others alone, is not found; what others hold or is pinned is") {
  SchedulerConfig config = caching();
  config.max_num_batched_tokens = 8;
  Scheduler scheduler(config);
  const auto fail = [&](GroupId id, std::int32_t length) {
    scheduler.add(text(id, counting(100, length)));
    for (SchedulerOutput plan = scheduler.schedule();; plan = scheduler.schedule()) {
      std::vector<SampledToken> tokens(static_cast<std::size_t>(plan.num_results), SampledToken{1, false});
      const std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
      scheduler.check_invariants();
      if (!events.empty()) {
        CHECK(events[0].finish_reason == FinishReason::kError);
        return;
      }
    }
  };
  const auto num_cached = [&] { return scheduler.kv_cache().prefix_cache().num_cached(); };
  fail(1, 13);  // in two steps, of which the first published two blocks
  CHECK(num_cached() == 0);
  CHECK(scheduler.kv_cache().device_pool().free_blocks().size() == 100);
  warm(scheduler, 2, counting(100, 21));
  CHECK(num_cached() == 5);
  REQUIRE(scheduler.pin(7, counting(100, 8)) == 2);
  fail(3, 13);  // found three blocks: what comes after the third goes with it
  CHECK(num_cached() == 2);
  CHECK(scheduler.pins().at(0).num_held_blocks == 2);
  CHECK(scheduler.unpin(7));
  fail(4, 6);
  CHECK(num_cached() == 0);
}

TEST_CASE("after a reset nothing is found, and what was computed before it never will be") {
  Scheduler scheduler(caching());
  warm(scheduler, 1, counting(100, 9));
  scheduler.add(text(2, counting(200, 9), 20));
  run_steps(scheduler, 1);
  scheduler.reset_prefix_cache();
  scheduler.check_invariants();
  CHECK(scheduler.kv_cache().device_pool().cached_free_blocks().empty());
  run_steps(scheduler, 8);  // the second fills two blocks more
  scheduler.add(text(3, counting(100, 9)));
  scheduler.add(text(4, counting(200, 9)));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{3, 0}, {4, 0}});
  answer(scheduler, plan);
  scheduler.add(text(5, counting(200, 9)));
  plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{5, 8}});  // the fourth's
  answer(scheduler, plan);
  scheduler.preempt(2, PreemptionMode::kRecompute);
  plan = scheduler.schedule();
  CHECK(rows(plan).front() == std::tuple{2, 8, 12});  // what it recomputes is new, and published again
}

TEST_CASE("a plan that is out when the cache is reset publishes nothing") {
  Scheduler scheduler(caching());
  scheduler.add(text(1, counting(100, 9)));
  const SchedulerOutput plan = scheduler.schedule();
  scheduler.reset_prefix_cache();
  answer(scheduler, plan);
  scheduler.add(text(2, counting(100, 9)));
  CHECK(scheduler.schedule().cached == Cached{{2, 0}});
}

TEST_CASE("a plan that was never updated has published nothing, and a copied beginning is looked up anew") {
  Scheduler scheduler(caching());
  warm(scheduler, 1, counting(100, 9));
  scheduler.add(text(2, joined(counting(100, 6), counting(50, 3)), 9));
  scheduler.add(text(3, counting(200, 9), 9));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.cached == Cached{{2, 6}, {3, 0}});
  CHECK(num_blocks(plan, CopyKind::kCopyOnWrite) == 1);
  plan = scheduler.schedule();
  scheduler.check_invariants();
  CHECK(plan.cached.empty());
  CHECK(num_blocks(plan, CopyKind::kCopyOnWrite) == 1);
  CHECK(rows(plan) == Rows{{3, 0, 9}, {2, 6, 3}});
  scheduler.add(text(4, counting(200, 9)));
  plan = scheduler.schedule();
  CHECK(num_blocks(plan, CopyKind::kCopyOnWrite) == 1);
  CHECK(plan.cached.empty());  // the third's prompt is being computed: the fourth waits for it
  answer(scheduler, plan);
  CHECK(scheduler.schedule().cached == Cached{{4, 8}});
}

TEST_CASE("prefixes need no hash of their own: with one that is always the same the hits are the same") {
  SchedulerConfig config = caching();
  config.prefix_hash_mask = 0;
  Scheduler scheduler(config);
  warm(scheduler, 1, counting(100, 13));
  warm(scheduler, 2, counting(200, 13));
  scheduler.add(text(3, joined(counting(100, 4), counting(204, 5))));
  scheduler.add(text(4, joined(counting(200, 10), counting(50, 5))));
  CHECK(scheduler.schedule().cached == Cached{{3, 4}, {4, 10}});
}

}  // namespace fastpaged::test
