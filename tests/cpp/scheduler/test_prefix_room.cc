// How prefixes that are found change who comes in when: less room is needed, one wait is added; and what preempted
// requests find of their own.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "scheduler/prefix_examples.h"

namespace fastpaged::test {

TEST_CASE("who comes in needs no room for what a running request holds already") {
  Scheduler scheduler(caching(6));
  scheduler.add(text(1, counting(100, 13), 9));  // four blocks, two are left
  run_steps(scheduler, 1);
  scheduler.add(text(2, joined(counting(100, 12), counting(50, 5))));  // five blocks, three of them the first's
  CHECK(scheduler.schedule().cached == Cached{{2, 12}});
}

TEST_CASE("blocks that are cached and free are room for others, but not twice") {
  Scheduler scheduler(caching(6));
  warm(scheduler, 1, counting(100, 13));
  CHECK(scheduler.kv_cache().num_free_blocks() == 6);
  scheduler.add(text(2, counting(200, 9), 9));  // takes three blocks, those that hold nothing
  run_steps(scheduler, 1);
  CHECK(scheduler.kv_cache().device_pool().cached_free_blocks().size() == 3);
  // Five blocks: three are cached, but nobody holds them, and only three are free.
  scheduler.add(text(3, joined(counting(100, 12), counting(50, 5))));
  CHECK(scheduler.schedule().let_in.empty());
  run_steps(scheduler, 1);
  CHECK(scheduler.num_waiting() == 1);
}

TEST_CASE("who did not fit comes in as soon as others have gained what it lacked") {
  SchedulerConfig config = caching(7);
  config.policy.watermark = 0.0;
  config.policy.long_prefill_token_threshold = 4;  // a block a step
  Scheduler scheduler(config);
  scheduler.add(text(1, counting(100, 17), 20));  // five blocks
  run_steps(scheduler, 1);
  scheduler.add(text(2, joined(counting(100, 16), counting(50, 4)), 4));  // five, of which two may be other ones
  std::vector<std::int32_t> found;
  for (int step = 2; step <= 4; ++step) {
    const SchedulerOutput plan = scheduler.schedule();
    found.push_back(plan.cached.empty() ? -1 : plan.cached[0].second);
    answer(scheduler, plan);
  }
  CHECK(found == std::vector<std::int32_t>{-1, -1, 12});
}

TEST_CASE("a prefix that comes in many requests at once is computed once") {
  Scheduler scheduler(caching());
  for (GroupId id = 1; id <= 4; ++id) {
    scheduler.add(text(id, joined(counting(100, 8), counting(static_cast<TokenId>(10 * id), 2)), 9));
  }
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 10}});
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 10, 1}, {2, 8, 2}, {3, 8, 2}, {4, 8, 2}});
  CHECK(plan.cached == Cached{{2, 8}, {3, 8}, {4, 8}});
  answer(scheduler, plan);
}

TEST_CASE("nobody waits for a prefix that is not going to be found whole, or not for them") {
  const auto second_rows = [](NewRequest first, NewRequest second) {
    SchedulerConfig config = caching();
    Scheduler scheduler(config);
    scheduler.add(std::move(first));
    scheduler.add(std::move(second));
    const SchedulerOutput plan = scheduler.schedule();
    return plan.scheduled.size() == 2 ? plan.scheduled[1].num_tokens : 0;
  };
  const NewRequest first = text(1, counting(100, 8), 9);
  CHECK(second_rows(first, text(2, joined(counting(100, 8), {1}))) == 0);     // waits
  CHECK(second_rows(first, text(2, joined(counting(100, 5), {1, 2}))) == 0);  // for the first block alone
  CHECK(second_rows(first, text(2, joined(counting(100, 3), {1, 2}))) == 5);  // not a block in common
  CHECK(second_rows(first, text(2, counting(100, 4))) == 4);                  // its last token is to be computed
  NewRequest other_root = text(2, counting(100, 9));
  other_root.cache_root = "tenant";
  CHECK(second_rows(first, other_root) == 9);
  NewRequest skips = text(2, counting(100, 9));
  skips.skip_prefix_cache = true;
  CHECK(second_rows(first, skips) == 9);
  NewRequest scored = text(2, counting(100, 9));
  scored.sampling.num_prompt_logprobs = 0;
  CHECK(second_rows(first, scored) == 9);
}

TEST_CASE("a prefix is waited for as well when it is computed from before what is found already") {
  Scheduler scheduler(caching());
  warm(scheduler, 1, counting(100, 5));
  NewRequest whole = text(2, counting(100, 12), 9);
  whole.skip_prefix_cache = true;
  scheduler.add(std::move(whole));
  scheduler.add(text(3, counting(100, 10), 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{2, 0, 12}});
  answer(scheduler, plan);
  CHECK(scheduler.schedule().cached == Cached{{3, 9}});
}

TEST_CASE("nobody waits for the next block of an answer, nor for a prompt that goes on after this step") {
  SchedulerConfig config = caching();
  config.policy.long_prefill_token_threshold = 4;
  Scheduler scheduler(config);
  scheduler.add(text(1, counting(100, 9), 9));
  scheduler.add(text(2, counting(100, 9), 9));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 4}, {2, 0, 4}});

  Scheduler answers(caching());
  answers.add(text(1, counting(100, 6), 9));
  answer(answers, answers.schedule(), 106);
  answer(answers, answers.schedule(), 107);  // seven are computed: the eighth fills a block
  answers.add(text(2, counting(100, 9), 9));
  CHECK(answers.schedule().cached == Cached{{2, 4}});
}

TEST_CASE("who waited for a prefix comes in a step later, and the line with it") {
  Scheduler scheduler(caching());
  scheduler.add(text(1, counting(100, 8), 9));
  scheduler.add(text(2, counting(100, 9), 9));
  scheduler.add(text(3, counting(200, 9), 9));
  CHECK(scheduler.schedule().let_in == std::vector<GroupId>{1});
  SchedulerOutput plan = scheduler.schedule();  // the other one was never updated
  CHECK(plan.let_in.empty());
  CHECK(rows(plan) == Rows{{1, 0, 8}});
  answer(scheduler, plan);
  CHECK(scheduler.schedule().let_in == std::vector<GroupId>{2, 3});
}

TEST_CASE("whole prompts: one that is found for the most part fits the rest of a step") {
  SchedulerConfig config = caching();
  config.policy = SchedulerPolicy::paper_2023();
  config.max_num_batched_tokens = 200;
  Scheduler scheduler(config);
  warm(scheduler, 1, counting(100, 101));
  scheduler.add(text(2, counting(300, 150)));
  scheduler.add(text(3, counting(100, 120)));
  scheduler.add(text(4, counting(1000, 60)));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{2, 0, 150}, {3, 100, 20}});
}

TEST_CASE("what is recomputed finds its own blocks, and only what is computed again is counted") {
  Scheduler scheduler(caching());
  scheduler.add(text(1, counting(100, 9), 20));
  run_steps(scheduler, 5);
  scheduler.preempt(1, PreemptionMode::kRecompute);
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 12, 2}});
  CHECK(plan.cached.empty());
  answer(scheduler, plan);
  CHECK(scheduler.stats().num_tokens_recomputed == 1);
  CHECK(scheduler.stats().num_prefix_tokens_looked_up == 9);
  CHECK(scheduler.stats().num_prefix_tokens_found == 0);
}

TEST_CASE("a swapped request leaves its blocks to the cache, and shares them again when it is back") {
  SchedulerConfig config = caching();
  config.num_host_blocks = 10;
  Scheduler scheduler(config);
  scheduler.add(text(1, counting(100, 9), 20));
  run_steps(scheduler, 1);
  const std::vector<BlockId> before = blocks_of(scheduler, 1);
  scheduler.preempt(1, PreemptionMode::kSwap);
  SchedulerOutput plan = scheduler.schedule();  // it comes back at once
  CHECK(plan.swapped_in == std::vector<GroupId>{1});
  scheduler.check_invariants();
  CHECK(scheduler.kv_cache().device_pool().cached_free_blocks() == std::vector<BlockId>{before[1], before[0]});
  CHECK(blocks_of(scheduler, 1)[0] != before[0]);
  answer(scheduler, plan);
  CHECK(blocks_of(scheduler, 1)[0] == before[0]);
  CHECK(blocks_of(scheduler, 1)[1] == before[1]);
  CHECK(scheduler.kv_cache().num_free_blocks() == 97);
}

TEST_CASE("a group's tree is rebuilt on what is found, within the blocks that it held") {
  Scheduler scheduler(caching());
  scheduler.add(text(1, counting(100, 10), 20));
  run_steps(scheduler, 1);
  const SequenceId child = scheduler.fork(1, scheduler.group(1).sequences[0]->id());
  for (TokenId step = 0; step < 4; ++step) {
    const SchedulerOutput plan = scheduler.schedule();
    scheduler.update(plan, std::vector<SampledToken>{{step, true}, {step + 30, true}});
    scheduler.check_invariants();
  }
  CHECK(scheduler.kv_cache().num_free_blocks() == 94);  // two shared, and two of each branch
  scheduler.preempt(1, PreemptionMode::kRecompute);
  SchedulerOutput plan = scheduler.schedule();
  scheduler.check_invariants();
  // The first branch finds its three full blocks; the other one shared two of them, and does so again.
  CHECK(rows(plan) == Rows{{1, 12, 2}, {1, 8, 6}});
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 14, 1}, {1, 14, 1}});
  CHECK(scheduler.kv_cache().num_free_blocks() == 94);
  CHECK(scheduler.finish(1, child));
  scheduler.check_invariants();
}

}  // namespace fastpaged::test
