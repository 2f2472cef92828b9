#include "fastpaged/scheduler/scheduler.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/examples.h"

namespace fastpaged::test {
namespace {

std::string refusal(Scheduler& scheduler, const NewRequest& request) {
  try {
    scheduler.add(request);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a prefill's chunk shares its step with decodes, which come first") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 10;
  Scheduler scheduler(config);
  scheduler.add(request(1, 3, 9));
  scheduler.add(request(2, 20, 9));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 3}, {2, 0, 7}});
  CHECK(plan.num_samples == 1);
  answer(scheduler, plan);
  scheduler.add(request(3, 5, 9));
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 3, 1}, {2, 7, 9}});
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 4, 1}, {2, 16, 4}, {3, 0, 5}});
  CHECK(plan.num_samples == 3);
}

TEST_CASE("the long prefill threshold leaves budget to the next in line") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 10;
  config.policy.long_prefill_token_threshold = 4;
  Scheduler scheduler(config);
  scheduler.add(request(1, 20, 9));
  scheduler.add(request(2, 3, 9));
  scheduler.add(request(3, 9, 9));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 4}, {2, 0, 3}, {3, 0, 3}});
}

TEST_CASE("no more sequences run than max_num_seqs") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 2;
  Scheduler scheduler(config);
  for (GroupId id = 1; id <= 3; ++id) {
    scheduler.add(request(id, 1, 1 + static_cast<std::int32_t>(id)));
  }
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 1}, {2, 0, 1}});
  CHECK(scheduler.num_running() == 2);
  CHECK(scheduler.num_waiting() == 1);
}

TEST_CASE("the first waiting request that does not fit holds the later ones back") {
  SchedulerConfig config = roomy();
  config.num_blocks = 5;
  Scheduler scheduler(config);
  scheduler.add(request(1, 9, 2));   // three blocks
  scheduler.add(request(2, 12, 2));  // three blocks, two are left
  scheduler.add(request(3, 1, 2));   // would fit
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 9}});
}

TEST_CASE("a request is let in only beside what running prefills still need") {
  SchedulerConfig config = roomy();
  config.num_blocks = 5;
  config.policy.long_prefill_token_threshold = 4;
  Scheduler scheduler(config);
  scheduler.add(request(1, 16, 2));  // four blocks, one of them now
  scheduler.add(request(2, 5, 2));   // two blocks
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 4}});
  CHECK(scheduler.kv_cache().num_free_blocks() == 4);  // blocks are taken for the tokens of the step
}

TEST_CASE("when a sequence cannot grow, the youngest is preempted whole, and recomputed before later arrivals") {
  SchedulerConfig config = roomy();
  config.num_blocks = 3;
  Scheduler scheduler(config);
  scheduler.add(request(1, 4, 3));
  scheduler.add(request(2, 6, 9));
  answer(scheduler, scheduler.schedule());
  scheduler.add(request(3, 1, 9));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted == std::vector<GroupId>{2});
  CHECK(rows(plan) == Rows{{1, 4, 1}});
  CHECK(scheduler.group(2).num_preemptions == 1);
  CHECK(scheduler.num_waiting() == 2);
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 5, 1}});  // 2 needs two blocks, one is free
  answer(scheduler, plan);               // 1 has its three tokens
  CHECK(rows(scheduler.schedule()) == Rows{{2, 0, 7}, {3, 0, 1}});
}

TEST_CASE("what a preempted group was to do in this step leaves the plan, and its budget comes back") {
  SchedulerConfig config = roomy();
  config.num_blocks = 7;
  config.max_num_batched_tokens = 3;
  config.policy.long_prefill_token_threshold = 2;
  Scheduler scheduler(config);
  scheduler.add(request(1, 20, 9));  // five blocks, one more in every second step
  scheduler.add(request(2, 1, 20));  // decodes: one more in every fourth step
  for (int step = 1; step <= 8; ++step) {
    const SchedulerOutput plan = scheduler.schedule();
    CHECK(plan.num_tokens == 3);
    answer(scheduler, plan);
  }
  const SchedulerOutput plan = scheduler.schedule();  // 2 comes first and takes the last block, which 1 needs too
  CHECK(plan.preempted == std::vector<GroupId>{2});
  CHECK(rows(plan) == Rows{{1, 16, 2}});
  CHECK(plan.num_tokens == 2);
  CHECK(plan.num_samples == 0);
  CHECK(scheduler.plan().budget() == 1);
}

TEST_CASE("a group that is itself the youngest is the one to go") {
  SchedulerConfig config = roomy();
  config.num_blocks = 2;
  Scheduler scheduler(config);
  scheduler.add(request(1, 2, 9));
  scheduler.add(request(2, 4, 9));
  answer(scheduler, scheduler.schedule());
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 2, 1}});
  CHECK(plan.preempted == std::vector<GroupId>{2});
}

TEST_CASE("a lone sequence at the end of the pool ends with its length, preempting nobody") {
  SchedulerConfig config = roomy();
  config.num_blocks = 2;
  Scheduler scheduler(config);
  scheduler.add(request(1, 7, 100));
  scheduler.add(request(2, 1, 1));
  answer(scheduler, scheduler.schedule());
  answer(scheduler, scheduler.schedule());  // eight tokens computed, the ninth is known
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.preempted.empty());
  REQUIRE(plan.ended.size() == 1);
  CHECK(plan.ended[0].group_id == 1);
  CHECK(rows(plan) == Rows{{2, 0, 1}});  // the blocks are free at once
  CHECK(scheduler.has_unfinished());
  CHECK(refusal(scheduler, request(1, 1, 1)) == "group_id 1 is in use: ids must be unique among unfinished requests");
  const std::vector<SequenceEvent> events = answer(scheduler, plan);
  REQUIRE(events.size() == 2);
  CHECK(events[0].finish_reason == FinishReason::kLength);
  CHECK_FALSE(events[0].has_token);
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(refusal(scheduler, request(1, 1, 1)) == "accepted");
}

TEST_CASE("an end that no update has reported is told again by the next plan") {
  SchedulerConfig config = roomy();
  config.num_blocks = 1;
  Scheduler scheduler(config);
  scheduler.add(request(1, 4, 100));
  answer(scheduler, scheduler.schedule());
  CHECK(scheduler.schedule().ended.size() == 1);
  CHECK(scheduler.has_unfinished());
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.ended.size() == 1);
  CHECK(answer(scheduler, plan).size() == 1);
  CHECK(scheduler.schedule().ended.empty());
}

TEST_CASE("a stop token is part of the output and wins over the length") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 3, 1, {9, 5}));
  const std::vector<SequenceEvent> events = answer(scheduler, scheduler.schedule(), 5);
  REQUIRE(events.size() == 1);
  CHECK(events[0].has_token);
  CHECK(events[0].token_id == 5);
  CHECK(events[0].finished);
  CHECK(events[0].finish_reason == FinishReason::kStop);
  CHECK(scheduler.kv_cache().num_free_blocks() == 100);
}

TEST_CASE("a sequence ends at max_tokens or at max_model_len, whichever is first") {
  SchedulerConfig config = roomy();
  config.max_model_len = 6;
  Scheduler scheduler(config);
  scheduler.add(request(1, 3, 2));
  scheduler.add(request(2, 3, 100));
  CHECK_FALSE(answer(scheduler, scheduler.schedule())[0].finished);
  std::vector<SequenceEvent> events = answer(scheduler, scheduler.schedule());
  CHECK(events[0].finished);
  CHECK_FALSE(events[1].finished);
  events = answer(scheduler, scheduler.schedule());
  REQUIRE(events.size() == 1);
  CHECK(events[0].group_id == 2);
  CHECK(events[0].finish_reason == FinishReason::kLength);
}

TEST_CASE("NaN logits fail their own request and no other") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 3, 4));
  scheduler.add(request(2, 3, 4));
  const SchedulerOutput plan = scheduler.schedule();
  const std::vector<SampledToken> tokens = {{0, false}, {8, true}};
  const std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
  REQUIRE(events.size() == 2);
  CHECK(events[0].finish_reason == FinishReason::kError);
  CHECK_FALSE(events[0].has_token);
  CHECK_FALSE(events[1].finished);
  CHECK(events[1].token_id == 8);
  CHECK(events[1].sample_row == 1);
  CHECK(scheduler.group(2).sequences[0]->num_output_tokens() == 1);
  CHECK(scheduler.kv_cache().num_free_blocks() == 99);
}

TEST_CASE("abort frees the blocks at once: waiting, prefilling, decoding, between schedule and update") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 10;
  Scheduler scheduler(config);
  scheduler.add(request(1, 3, 9));   // decodes
  scheduler.add(request(2, 30, 9));  // prefills
  scheduler.add(request(3, 3, 9));   // waits
  answer(scheduler, scheduler.schedule());
  const SchedulerOutput plan = scheduler.schedule();
  for (const GroupId id : {GroupId{3}, GroupId{2}, GroupId{1}}) {
    CHECK(scheduler.abort(id));
    CHECK_FALSE(scheduler.abort(id));
    scheduler.check_invariants();
  }
  CHECK(scheduler.kv_cache().num_free_blocks() == 100);
  CHECK(answer(scheduler, plan).empty());
  CHECK_FALSE(scheduler.has_unfinished());
}

TEST_CASE("an id may be used again at once after an abort, and the old step leaves no trace in the new request") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 3, 9));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(scheduler.abort(1));
  scheduler.add(request(1, 5, 9));
  CHECK(answer(scheduler, plan).empty());
  CHECK(scheduler.group(1).sequences[0]->num_tokens() == 5);
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 5}});
}

TEST_CASE("what can never run is refused at the door, with what would fit") {
  SchedulerConfig config = roomy();
  config.num_blocks = 2;
  config.max_model_len = 12;
  Scheduler scheduler(config);
  CHECK(refusal(scheduler, request(1, 0, 1)) == "prompt_token_ids is empty: at least one token is needed");
  CHECK(refusal(scheduler, request(1, 12, 1)) ==
        "prompt_token_ids has 12 tokens; at most 11 fit: max_model_len is 12, and one is the answer's");
  CHECK(refusal(scheduler, request(1, 9, 1)) ==
        "prompt_token_ids has 9 tokens; at most 8 fit: the KV cache has 2 blocks of 4");
  CHECK(refusal(scheduler, request(1, 3, 0)) == "max_tokens must be >= 1, got 0");
  NewRequest negative = request(1, 3, 1);
  negative.prompt_token_ids[2] = -4;
  CHECK(refusal(scheduler, negative) == "prompt_token_ids[2] must be >= 0, got -4");
  NewRequest hot = request(1, 3, 1);
  hot.sampling.top_p = 0;
  CHECK(refusal(scheduler, hot) == "top_p must be in (0, 1], got 0.000000");
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(refusal(scheduler, request(1, 8, 5)) == "accepted");
  CHECK(refusal(scheduler, request(1, 1, 1)) == "group_id 1 is in use: ids must be unique among unfinished requests");
}

TEST_CASE("a configuration says which field is wrong") {
  const auto wrong = [](auto member, std::int32_t value) {
    SchedulerConfig config = roomy();
    config.*member = value;
    try {
      const Scheduler scheduler(config);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(wrong(&SchedulerConfig::num_blocks, 0) == "num_blocks must be > 0, got 0");
  CHECK(wrong(&SchedulerConfig::block_size, 300) == "block_size must be in [1, 256], got 300");
  CHECK(wrong(&SchedulerConfig::max_num_seqs, 0) == "max_num_seqs must be >= 1, got 0");
  CHECK(wrong(&SchedulerConfig::max_num_batched_tokens, -1) == "max_num_batched_tokens must be >= 1, got -1");
  CHECK(wrong(&SchedulerConfig::max_model_len, 1) == "max_model_len must be >= 2, got 1");
  CHECK(wrong(&SchedulerConfig::num_host_blocks, -1) == "num_host_blocks must be >= 0, got -1");
}

TEST_CASE("only the last plan can be updated, once, with a token for each result") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 3, 9));
  const SchedulerOutput old = scheduler.schedule();
  SchedulerOutput plan = scheduler.schedule();
  CHECK_THROWS_WITH_AS(answer(scheduler, old),
                       "plan must be the last one and not updated yet: got step 1, the last is 2",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(scheduler.update(plan, SampledRows{}),
                       "tokens must have one entry per score and draw: the plan has 1, got 0", std::invalid_argument);
  SchedulerOutput changed = plan;
  changed.scheduled[0].num_tokens = 2;
  CHECK_THROWS_WITH_AS(answer(scheduler, changed), "plan of step 2 was made by another scheduler or changed",
                       std::invalid_argument);
  CHECK(scheduler.group(1).sequences[0]->num_tokens() == 3);  // none of it did anything
  CHECK(answer(scheduler, plan).size() == 1);
  CHECK_THROWS_WITH_AS(answer(scheduler, plan),
                       "plan must be the last one and not updated yet: got step 2, the last is 2 (updated)",
                       std::invalid_argument);
}

TEST_CASE("a step with nothing to do is an empty plan") {
  Scheduler scheduler(roomy());
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.scheduled.empty());
  CHECK(plan.num_tokens == 0);
  CHECK(answer(scheduler, plan).empty());
}

TEST_CASE("a request that is gone has no group to look at") {
  Scheduler scheduler(roomy());
  CHECK_THROWS_WITH_AS((void)scheduler.group(4), "group_id 4 is not here (any more)", std::invalid_argument);
}

}  // namespace fastpaged::test
