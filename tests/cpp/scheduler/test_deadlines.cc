// Requests whose time is up end wherever they are, and never compute a token from then on.
#include <doctest/doctest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/examples.h"

namespace fastpaged::test {
namespace {

NewRequest until(NewRequest request, Nanoseconds deadline, Nanoseconds queue_deadline = kNoDeadline) {
  request.deadline = deadline;
  request.queue_deadline = queue_deadline;
  return request;
}

using Ends = std::vector<std::tuple<GroupId, SequenceId, FinishReason, bool>>;

Ends ends(const std::vector<SequenceEvent>& events) {
  Ends ends;
  for (const SequenceEvent& event : events) {
    if (event.finished) {
      CHECK_FALSE(event.has_token);
      ends.emplace_back(event.group_id, event.sequence_id, event.finish_reason, event.group_finished);
    }
  }
  return ends;
}

std::vector<SequenceEvent> step_at(Scheduler& scheduler, Nanoseconds now) {
  return answer(scheduler, scheduler.schedule(now));
}

}  // namespace

TEST_CASE("a running request ends in the step whose time is its deadline, without a token, and gives its blocks back") {
  Scheduler scheduler(roomy());
  scheduler.add(until(request(1, 5, 50), 100));
  scheduler.add(request(2, 5, 50));
  CHECK(ends(step_at(scheduler, 0)).empty());
  CHECK(ends(step_at(scheduler, 99)).empty());
  const std::int64_t free_before = scheduler.kv_cache().num_free_blocks();
  const SchedulerOutput plan = scheduler.schedule(100);
  CHECK(rows(plan) == Rows{{2, 6, 1}});
  CHECK(ends(plan.ended) == Ends{{1, 0, FinishReason::kDeadline, true}});
  CHECK(scheduler.kv_cache().num_free_blocks() == free_before + 2);
  CHECK(ends(answer(scheduler, plan)) == ends(plan.ended));
  CHECK_FALSE(scheduler.abort(1));
}

TEST_CASE("a request in line ends by its queue deadline; once let in, it has none, not even back in line") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 1;
  Scheduler scheduler(config);
  scheduler.add(until(request(1, 5, 50), kNoDeadline, 10));
  scheduler.add(until(request(2, 5, 50), kNoDeadline, 10));
  CHECK(ends(step_at(scheduler, 9)).empty());
  CHECK(scheduler.preempt(1, PreemptionMode::kRecompute));
  CHECK(ends(step_at(scheduler, 10)) == Ends{{2, 1, FinishReason::kQueueTimeout, true}});
  CHECK(ends(step_at(scheduler, 1000)).empty());
  CHECK(scheduler.num_running() == 1);
}

TEST_CASE("a request whose time was up before it came never runs") {
  Scheduler scheduler(roomy());
  static_cast<void>(scheduler.schedule(50));
  scheduler.add(until(request(1, 5, 50), 20));
  scheduler.add(until(request(2, 5, 50), kNoDeadline, 20));
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(rows(plan).empty());
  CHECK(plan.let_in.empty());
  CHECK(ends(answer(scheduler, plan)) ==
        Ends{{1, 0, FinishReason::kDeadline, true}, {2, 1, FinishReason::kQueueTimeout, true}});
  CHECK_FALSE(scheduler.has_unfinished());
}

TEST_CASE("of two times that are up the earlier one is the reason, and of equal ones the deadline") {
  Scheduler scheduler(roomy());
  scheduler.add(until(request(1, 5, 50), 7, 6));
  scheduler.add(until(request(2, 5, 50), 6, 6));
  scheduler.add(until(request(3, 5, 50), 5, 6));
  CHECK(ends(step_at(scheduler, 8)) == Ends{{3, 2, FinishReason::kDeadline, true},
                                            {2, 1, FinishReason::kDeadline, true},
                                            {1, 0, FinishReason::kQueueTimeout, true}});
}

TEST_CASE("each branch that lives has its end, the last one its request's; samples that have not parted have one") {
  Scheduler scheduler(roomy());
  NewRequest samples = until(request(1, 5, 50), 3);
  samples.num_samples = 3;
  scheduler.add(samples);
  samples.id = 2;
  samples.queue_deadline = 2;
  CHECK(ends(step_at(scheduler, 1)).empty());
  scheduler.add(samples);
  CHECK(ends(step_at(scheduler, 2)) == Ends{{2, 3, FinishReason::kQueueTimeout, true}});
  CHECK(scheduler.finish(1, 1));
  CHECK(ends(step_at(scheduler, 3)) ==
        Ends{{1, 0, FinishReason::kDeadline, false}, {1, 2, FinishReason::kDeadline, true}});
  CHECK_FALSE(scheduler.has_unfinished());
}

TEST_CASE("beams end by their time as if aborted, with one event and no results") {
  Scheduler scheduler(roomy());
  NewRequest beams = until(request(1, 5, 50), 3);
  beams.sampling.beam = BeamParams{.width = 2, .num_candidates = 4};
  scheduler.add(beams);
  CHECK(ends(scheduler.schedule(3).ended) == Ends{{1, 0, FinishReason::kDeadline, true}});
  CHECK(scheduler.num_running() + scheduler.num_waiting() == 0);
}

TEST_CASE("swapped requests and those of a plan that was never updated end by their time, too") {
  SchedulerConfig config = roomy();
  config.num_host_blocks = 4;
  config.max_num_seqs = 1;
  Scheduler scheduler(config);
  scheduler.add(until(request(1, 5, 50), 20));
  CHECK(ends(step_at(scheduler, 0)).empty());
  scheduler.add(until(request(2, 5, 50), 10));
  CHECK(scheduler.preempt(1, PreemptionMode::kSwap));
  const SchedulerOutput lost = scheduler.schedule(1);  // its copies may not have been run
  CHECK(lost.swapped_out == std::vector<GroupId>{1});
  CHECK(ends(scheduler.schedule(10).ended) == Ends{{2, 1, FinishReason::kDeadline, true}});
  CHECK(scheduler.preempt(1, PreemptionMode::kSwap));
  const SchedulerOutput plan = scheduler.schedule(20);
  CHECK(ends(plan.ended) == Ends{{2, 1, FinishReason::kDeadline, true}, {1, 0, FinishReason::kDeadline, true}});
  CHECK(ends(answer(scheduler, plan)) == ends(plan.ended));
  CHECK(scheduler.kv_cache().num_free_blocks() == scheduler.kv_cache().num_blocks());
  CHECK(scheduler.kv_cache().host_pool().num_free() == config.num_host_blocks);
}

TEST_CASE("time never goes back") {
  Scheduler scheduler(roomy());
  static_cast<void>(scheduler.schedule(5));
  CHECK_THROWS_AS(static_cast<void>(scheduler.schedule(4)), std::invalid_argument);
  static_cast<void>(scheduler.schedule());
  static_cast<void>(scheduler.schedule(5));
}

}  // namespace fastpaged::test
