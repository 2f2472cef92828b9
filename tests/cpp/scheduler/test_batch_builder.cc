#include "fastpaged/scheduler/batch_builder.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace fastpaged::test {
namespace {

using Ints = std::vector<std::int32_t>;

Ints ints(std::span<const std::int32_t> array) {
  return {array.begin(), array.end()};
}

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.num_blocks = 8;
  config.block_size = 2;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 6;
  config.max_model_len = 50;
  return config;
}

}  // namespace

TEST_CASE("a mixed step is written as flat arrays, row for row") {
  Scheduler scheduler(small_config());
  BatchBuilder builder(scheduler);
  scheduler.add({.id = 1, .prompt_token_ids = {10, 11, 12}, .sampling = {.seed = 71}, .stop = {9, {}}});
  SchedulerOutput plan = scheduler.schedule();  // blocks 0 and 1
  scheduler.update(plan, std::vector<SampledToken>{{13, true}});
  scheduler.add({.id = 2, .prompt_token_ids = {20, 21, 22, 23, 24, 25, 26}, .sampling = {.seed = 72}, .stop = {9, {}}});
  plan = scheduler.schedule();  // one decode; five of seven tokens in blocks 2, 3 and 4

  const Batch& batch = builder.build(plan);
  CHECK(ints(batch.token_ids) == Ints{13, 20, 21, 22, 23, 24});
  CHECK(ints(batch.positions) == Ints{3, 0, 1, 2, 3, 4});
  CHECK(ints(batch.slot_mapping) == Ints{3, 4, 5, 6, 7, 8});
  CHECK(ints(batch.query_start) == Ints{0, 1, 6});
  CHECK(ints(batch.context_lens) == Ints{4, 5});
  CHECK(batch.max_blocks_per_sequence == 3);
  CHECK(ints(batch.block_tables) == Ints{0, 1, 0, 2, 3, 4});
  CHECK(ints(batch.sample_rows) == Ints{0});
  REQUIRE(builder.sample_requests().size() == 1);
  CHECK(builder.sample_requests()[0].params.seed == 71);
  CHECK(builder.sample_requests()[0].position == 4);
}

TEST_CASE("an empty plan is an empty batch") {
  Scheduler scheduler(small_config());
  BatchBuilder builder(scheduler);
  const Batch& batch = builder.build(scheduler.schedule());
  CHECK(batch.token_ids.empty());
  CHECK(ints(batch.query_start) == Ints{0});
  CHECK(batch.block_tables.empty());
  CHECK(builder.sample_requests().empty());
}

TEST_CASE("a builder keeps its arrays: building moves no memory") {
  Scheduler scheduler(small_config());
  BatchBuilder builder(scheduler);
  const std::int32_t* const tokens = builder.build(scheduler.schedule()).token_ids.data();
  const std::int32_t* const tables = builder.build(scheduler.schedule()).block_tables.data();
  for (GroupId id = 1; id <= 4; ++id) {
    scheduler.add({.id = id, .prompt_token_ids = {1, 2}, .sampling = {}, .stop = {9, {}}});
  }
  const Batch& batch = builder.build(scheduler.schedule());
  CHECK(batch.token_ids.size() == 6);
  CHECK(batch.token_ids.data() == tokens);
  CHECK(batch.block_tables.data() == tables);
}

TEST_CASE("only the scheduler's last plan, whole, can be built") {
  Scheduler scheduler(small_config());
  BatchBuilder builder(scheduler);
  scheduler.add({.id = 1, .prompt_token_ids = {1, 2}, .sampling = {}, .stop = {9, {}}});
  const SchedulerOutput old = scheduler.schedule();
  const SchedulerOutput plan = scheduler.schedule();
  CHECK_THROWS_AS(builder.build(old), std::invalid_argument);
  CHECK(scheduler.abort(1));
  CHECK_THROWS_WITH_AS(builder.build(plan), "plan holds group_id 1, which was aborted since", std::invalid_argument);
}

}  // namespace fastpaged::test
