// Requests of several branches.
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/examples.h"

namespace fastpaged::test {
namespace {

const Sequence& branch(const Scheduler& scheduler, GroupId id, std::size_t place) {
  return *scheduler.group(id).sequences.at(place);
}

std::vector<BlockId> blocks(const Sequence& sequence) {
  return {sequence.table().blocks().begin(), sequence.table().blocks().end()};
}

std::string refusal(Scheduler& scheduler, GroupId id, SequenceId sequence) {
  try {
    static_cast<void>(scheduler.fork(id, sequence));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("branches decode in the same step; who writes into a shared block first copies it") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 5, 9));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  CHECK(blocks(branch(scheduler, 1, 1)) == std::vector<BlockId>{0, 1});
  CHECK(scheduler.kv_cache().num_free_blocks() == 98);
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 5, 1}, {1, 5, 1}});
  CHECK(plan.num_samples == 2);
  CHECK(plan.copies == std::vector<BlockCopy>{{CopyKind::kCopyOnWrite, 1, 2, 1}});
  CHECK(blocks(branch(scheduler, 1, 0)) == std::vector<BlockId>{0, 2});
  CHECK(blocks(branch(scheduler, 1, 1)) == std::vector<BlockId>{0, 1});
  const std::vector<SampledToken> tokens = {{20, true}, {21, true}};
  const std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
  REQUIRE(events.size() == 2);
  CHECK(events[0].sequence_id == 0);
  CHECK(events[1].sequence_id == 1);
  CHECK(events[1].sample_row == 1);
  CHECK(events[1].token_id == 21);
  plan = scheduler.schedule();
  CHECK(plan.copies.empty());
  CHECK(scheduler.stats().num_blocks_copied_on_write == 1);
}

TEST_CASE("a request has ended when its last branch has") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 4, 9, {5}));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  SchedulerOutput plan = scheduler.schedule();
  const std::vector<SampledToken> tokens = {{5, true}, {6, true}};
  const std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
  CHECK(events[0].finished);
  CHECK_FALSE(events[0].group_finished);
  CHECK_FALSE(events[1].finished);
  CHECK(scheduler.group(1).num_sequences() == 1);
  CHECK(answer(scheduler, scheduler.schedule(), 5)[0].group_finished);
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(scheduler.kv_cache().num_free_blocks() == 100);
}

TEST_CASE("branches may be ended one by one, between steps or while one is out") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 4, 9));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  CHECK(scheduler.fork(1, 1) == 2);
  CHECK(scheduler.finish(1, 0));
  CHECK_FALSE(scheduler.finish(1, 0));
  CHECK_FALSE(scheduler.finish(2, 1));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.num_samples == 2);
  CHECK(scheduler.finish(1, 1));
  const std::vector<SequenceEvent> events = answer(scheduler, plan);
  REQUIRE(events.size() == 1);
  CHECK(events[0].sequence_id == 2);
  CHECK(events[0].sample_row == 1);
  CHECK(scheduler.finish(1, 2));
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(scheduler.kv_cache().num_free_blocks() == 100);
}

TEST_CASE("a group whose branches do not all fit the step's budget decodes not at all") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 3;
  Scheduler scheduler(config);
  for (const GroupId id : {GroupId{1}, GroupId{2}}) {
    scheduler.add(request(id, 1, 9));
  }
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 2);
  CHECK(scheduler.fork(2, 1) == 3);
  CHECK(rows(scheduler.schedule()) == Rows{{1, 1, 1}, {1, 1, 1}});
}

TEST_CASE("what cannot be forked is refused by its name") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 8;
  Scheduler scheduler(config);
  const std::string unready =
      "sequence 0 of group_id 1 cannot be forked: its request must be running, with one token left to compute in each "
      "branch";
  CHECK(refusal(scheduler, 1, 0) == "sequence 0 of group_id 1 is not here (any more)");
  scheduler.add(request(1, 9, 9));
  CHECK(refusal(scheduler, 1, 0) == unready);
  CHECK(refusal(scheduler, 1, 7) == "sequence 7 of group_id 1 is not here (any more)");
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(refusal(scheduler, 1, 0) == "fork() must come after update() and before the next schedule()");
  answer(scheduler, plan);
  run_steps(scheduler, 1);
  CHECK(refusal(scheduler, 1, 0) == "accepted");
  CHECK(refusal(scheduler, 1, 0) ==
        "sequence 0 of group_id 1 cannot be forked: 2 sequences run, 2 of them of this request; max_num_seqs is 2 and "
        "max_num_batched_tokens 8");
  CHECK(scheduler.finish(1, 1));
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  answer(scheduler, scheduler.schedule());
  CHECK(refusal(scheduler, 1, 0) == unready);  // it is being recomputed
}

TEST_CASE("a branch beyond the pool ends with its length; its siblings go on, and nobody is preempted") {
  SchedulerConfig config = roomy();
  config.num_blocks = 3;
  config.max_num_seqs = 3;
  Scheduler scheduler(config);
  scheduler.add(request(1, 7, 9));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  scheduler.add(request(2, 4, 1));
  run_steps(scheduler, 1);  // token 7: one branch copies the second block; the pool is full
  const SchedulerOutput plan = scheduler.schedule();
  REQUIRE(plan.ended.size() == 1);
  CHECK(plan.ended[0].sequence_id == 0);
  CHECK_FALSE(plan.ended[0].group_finished);
  CHECK(plan.preempted.empty());
  CHECK(rows(plan) == Rows{{1, 8, 1}});
  answer(scheduler, plan);
  run_steps(scheduler, 3);  // tokens 9, 10 and 11; then it is alone at the end
  CHECK(scheduler.schedule().ended.size() == 1);
  CHECK(scheduler.stats().num_preemptions == 0);
  run_steps(scheduler, 1);
  CHECK(scheduler.stats().num_preemptions == 0);
  CHECK_FALSE(scheduler.has_unfinished());
}

TEST_CASE("swapping copies a shared block once, and it is shared again when it comes back") {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 4;
  Scheduler scheduler(config);
  scheduler.add(request(1, 9, 9));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  run_steps(scheduler, 1);  // two blocks shared, and one of each branch's own
  CHECK(scheduler.kv_cache().num_free_blocks() == 96);
  scheduler.add(request(2, 4, 9));
  CHECK(scheduler.preempt(1, PreemptionMode::kSwap));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.swapped_out == std::vector<GroupId>{1});
  CHECK(plan.swapped_in == std::vector<GroupId>{1});  // nothing stands in its way
  CHECK(num_blocks(plan, CopyKind::kSwapOut) == 4);
  CHECK(num_blocks(plan, CopyKind::kSwapIn) == 4);
  CHECK(rows(plan) == Rows{{1, 10, 1}, {1, 10, 1}, {2, 0, 4}});
  CHECK(scheduler.kv_cache().host_pool().num_free() == 4);
  CHECK(scheduler.kv_cache().num_free_blocks() == 95);
  CHECK(blocks(branch(scheduler, 1, 0))[1] == blocks(branch(scheduler, 1, 1))[1]);
  CHECK(blocks(branch(scheduler, 1, 0))[2] != blocks(branch(scheduler, 1, 1))[2]);
  CHECK(scheduler.stats().num_blocks_swapped_out == 4);
  CHECK(scheduler.stats().num_blocks_swapped_in == 4);
}

TEST_CASE("recomputing a fork tree computes what branches share once, and counts it exactly") {
  Scheduler scheduler(roomy());
  scheduler.add(request(1, 9, 20));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  run_steps(scheduler, 3);  // 12 computed tokens each, the first 8 in shared blocks
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 0, 12}});  // the second branch waits for the first
  CHECK(plan.num_samples == 0);
  answer(scheduler, plan);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 8, 4}});
  answer(scheduler, plan);
  CHECK(scheduler.stats().num_tokens_recomputed == 12 + 4);
  CHECK(scheduler.kv_cache().num_free_blocks() == 96);
  plan = scheduler.schedule();
  CHECK(rows(plan) == Rows{{1, 12, 1}, {1, 12, 1}});
}

TEST_CASE("when the first branch ends in the middle of a rebuild, the second goes on from where it was") {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 10;
  Scheduler scheduler(config);
  scheduler.add(request(1, 9, 20));
  run_steps(scheduler, 1);
  CHECK(scheduler.fork(1, 0) == 1);
  CHECK(scheduler.fork(1, 0) == 2);
  run_steps(scheduler, 3);
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  SUBCASE("between steps") {
    scheduler.add(request(2, 1, 9));
    run_steps(scheduler, 1);  // ten of the twelve tokens: the others have their eight
    CHECK(branch(scheduler, 1, 1).num_computed_tokens() == 8);
    CHECK(scheduler.finish(1, 0));
  }
  SUBCASE("while its step is out") {
    const SchedulerOutput plan = scheduler.schedule();
    CHECK(rows(plan) == Rows{{1, 0, 10}});
    CHECK(scheduler.finish(1, 0));
    CHECK(answer(scheduler, plan).empty());
    CHECK(branch(scheduler, 1, 0).num_computed_tokens() == 0);
    CHECK(branch(scheduler, 1, 1).rebuild().from == &branch(scheduler, 1, 0));
  }
  scheduler.check_invariants();
  run_steps(scheduler, 4);
  REQUIRE(scheduler.group(1).decodes());
  CHECK(blocks(branch(scheduler, 1, 0))[1] == blocks(branch(scheduler, 1, 1))[1]);
  CHECK(scheduler.abort(1));
}

}  // namespace fastpaged::test
