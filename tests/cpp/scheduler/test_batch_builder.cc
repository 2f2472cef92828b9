#include "fastpaged/scheduler/batch_builder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "fastpaged/base/check.h"
#include "random.h"

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

struct Expected {
  Ints token_ids, positions, slot_mapping, query_start{0}, context_lens, sample_rows;
  std::vector<Ints> tables;  // used entries only
  std::vector<std::int64_t> sample_positions;
};

// The plan written out token by token, from what the scheduler shows of its sequences.
Expected write_plainly(const Scheduler& scheduler, const SchedulerOutput& plan) {
  const std::int32_t block_size = scheduler.config().block_size;
  Expected expected;
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    const Sequence& sequence = *scheduler.group(scheduled.group_id).find(scheduled.sequence_id);
    expected.tables.push_back(ints(sequence.table().blocks()));
    for (std::int32_t i = scheduled.first_token; i < scheduled.first_token + scheduled.num_tokens; ++i) {
      expected.token_ids.push_back(sequence.token_ids()[i]);
      expected.positions.push_back(i);
      expected.slot_mapping.push_back(expected.tables.back()[i / block_size] * block_size + i % block_size);
      if (i >= sequence.num_scored() && i + 1 < sequence.num_prompt_tokens()) {
        expected.sample_rows.push_back(static_cast<std::int32_t>(expected.token_ids.size()) - 1);
        expected.sample_positions.push_back(i + 1);
      }
    }
    expected.query_start.push_back(static_cast<std::int32_t>(expected.token_ids.size()));
    expected.context_lens.push_back(scheduled.first_token + scheduled.num_tokens);
    if (scheduled.samples) {
      expected.sample_rows.push_back(expected.query_start.back() - 1);
      expected.sample_positions.push_back(sequence.num_tokens());
    }
  }
  return expected;
}

void check_batch(BatchBuilder& builder, const SchedulerOutput& plan, const Expected& expected) {
  const Batch& batch = builder.build(plan);
  REQUIRE(ints(batch.token_ids) == expected.token_ids);
  REQUIRE(ints(batch.positions) == expected.positions);
  REQUIRE(ints(batch.slot_mapping) == expected.slot_mapping);
  REQUIRE(ints(batch.query_start) == expected.query_start);
  REQUIRE(ints(batch.context_lens) == expected.context_lens);
  REQUIRE(ints(batch.sample_rows) == expected.sample_rows);
  REQUIRE(builder.sample_requests().size() == expected.sample_positions.size());
  for (std::size_t i = 0; i < expected.sample_positions.size(); ++i) {
    REQUIRE(builder.sample_requests()[i].position == expected.sample_positions[i]);
  }
  const auto width = static_cast<std::size_t>(batch.max_blocks_per_sequence);
  REQUIRE(batch.block_tables.size() == expected.tables.size() * width);
  for (std::size_t row = 0; row < expected.tables.size(); ++row) {
    Ints padded = expected.tables[row];
    REQUIRE(padded.size() <= width);
    padded.resize(width, 0);
    REQUIRE(ints(batch.block_tables.subspan(row * width, width)) == padded);
  }
}

// Requests, forks, preemptions and ends at random. Some plans are not built, and some are never updated.
class RandomLife {
 public:
  explicit RandomLife(std::uint32_t seed) : random_(seed), scheduler_(config()), builder_(scheduler_) {}

  void step() {
    disturb();
    const SchedulerOutput plan = scheduler_.schedule();
    scheduler_.check_invariants();
    if (below(8) > 0) {
      const Expected expected = write_plainly(scheduler_, plan);
      BatchBuilder fresh(scheduler_);
      check_batch(fresh, plan, expected);
      check_batch(builder_, plan, expected);
      widths_.insert(builder_.build(plan).max_blocks_per_sequence);
    }
    if (below(16) > 0) {
      std::vector<SampledToken> tokens;
      for (std::int32_t i = 0; i < plan.num_rows; ++i) {
        tokens.push_back({below(40), below(50) > 0});
      }
      scheduler_.update(plan, tokens);
    }
  }

  [[nodiscard]] const SchedulerStats& stats() const { return scheduler_.stats(); }
  [[nodiscard]] std::size_t num_widths() const { return widths_.size(); }

 private:
  SchedulerConfig config() {
    SchedulerConfig config;
    config.num_blocks = 6 + below(30);
    config.block_size = 1 + below(4);
    config.num_host_blocks = below(2) * 20;
    config.max_num_seqs = 1 + below(6);
    config.max_num_batched_tokens = 4 + below(20);
    config.max_model_len = 60;
    config.max_num_rows = below(2) * (config.max_num_seqs + below(4));
    config.policy.preemption_mode = below(2) == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    return config;
  }

  void disturb() {
    const GroupId id = below(8);
    switch (below(8)) {
      case 0:
        scheduler_.abort(id);
        break;
      case 1:
        scheduler_.preempt(id, below(2) == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute);
        break;
      case 2:
      case 3:
        try_to([&] { scheduler_.fork(id, scheduler_.group(id).sequences.front()->id()); });
        break;
      default:
        try_to([&] {
          Ints prompt(1 + below(below(4) == 0 ? 40 : 8));
          std::ranges::generate(prompt, [&] { return below(40); });
          SamplingParams sampling;
          sampling.num_prompt_logprobs = below(3) == 0 ? std::optional(below(3)) : std::nullopt;
          scheduler_.add({.id = id, .prompt_token_ids = prompt, .sampling = sampling, .stop = {1 + below(12), {3}}});
        });
    }
  }

  // What the scheduler refuses in its present state is not done.
  template <typename Operation>
  static void try_to(const Operation& operation) {
    try {
      operation();
    } catch (const std::invalid_argument&) {
    }
  }

  std::int32_t below(std::int32_t n) { return random_.between(0, n - 1); }

  Random random_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  std::set<std::int32_t> widths_;
};

}  // namespace

TEST_CASE("a builder that has seen many plans writes what a fresh one and a plain loop write") {
  SchedulerStats all;
  std::size_t most_widths = 0;
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    RandomLife life(seed);
    for (int i = 0; i < 200; ++i) {
      CAPTURE(i);
      life.step();
    }
    all.num_groups_swapped_in += life.stats().num_groups_swapped_in;
    all.num_tokens_recomputed += life.stats().num_tokens_recomputed;
    all.num_blocks_copied_on_write += life.stats().num_blocks_copied_on_write;
    most_widths = std::max(most_widths, life.num_widths());
  }
  CHECK(all.num_groups_swapped_in > 100);
  CHECK(all.num_tokens_recomputed > 1000);
  CHECK(all.num_blocks_copied_on_write > 100);
  CHECK(most_widths > 3);
}

TEST_CASE("rows are a power of two wide, at most as wide as a table can get, and narrow again when tables shrink") {
  SchedulerConfig config = small_config();
  config.num_blocks = 11;
  config.max_num_batched_tokens = 22;
  Scheduler scheduler(config);
  BatchBuilder builder(scheduler);
  const auto width_for = [&](std::int32_t num_tokens) {
    scheduler.add({.id = 1, .prompt_token_ids = Ints(num_tokens, 7), .sampling = {}, .stop = {9, {}}});
    const std::int32_t width = builder.build(scheduler.schedule()).max_blocks_per_sequence;
    scheduler.reset();
    return width;
  };
  CHECK(width_for(6) == 4);
  CHECK(width_for(8) == 4);
  CHECK(width_for(10) == 8);
  CHECK(width_for(5) == 8);    // not yet worth moving every row
  CHECK(width_for(22) == 11);  // of 16: the pool has no more
  CHECK(width_for(2) == 1);
}

TEST_CASE("writing into a shared block is refused, naming the block and the sequence") {
  Scheduler scheduler(small_config());
  BatchBuilder builder(scheduler);
  scheduler.add({.id = 1, .prompt_token_ids = {10, 11, 12}, .sampling = {}, .stop = {9, {}}});
  const SchedulerOutput plan = scheduler.schedule();
  {
    // Nobody but the scheduler may share blocks while a plan is out.
    const BlockTable intruder = scheduler.group(1).sequences.front()->table().fork(9, 2);
    CHECK_THROWS_WITH_AS(builder.build(plan), doctest::Contains("sequence 0 would write into block 0, which 2 tables"),
                         InvariantError);
  }
  CHECK(builder.build(plan).token_ids.size() == 3);
}

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
  CHECK(batch.max_blocks_per_sequence == 4);
  CHECK(ints(batch.block_tables) == Ints{0, 1, 0, 0, 2, 3, 4, 0});
  CHECK(ints(batch.sample_rows) == Ints{0});
  REQUIRE(builder.sample_requests().size() == 1);
  CHECK(builder.sample_requests()[0].params.seed == 71);
  CHECK(builder.sample_requests()[0].position == 4);
}

TEST_CASE("only requests that look back get a history, which outlives their sequence") {
  Scheduler scheduler(small_config());
  BatchBuilder builder(scheduler);
  scheduler.add({.id = 1, .prompt_token_ids = {10}, .sampling = {.presence_penalty = 1.0F}, .stop = {9, {}}});
  scheduler.add({.id = 2, .prompt_token_ids = {20, 21}, .sampling = {.seed = 72}, .stop = {9, {}}});
  scheduler.add({.id = 3, .prompt_token_ids = {30, 31}, .sampling = {.repetition_penalty = 2.0F}, .stop = {9, {}}});
  SchedulerOutput plan = scheduler.schedule();
  builder.build(plan);
  scheduler.update(plan, std::vector<SampledToken>{{11}, {22}, {32}});
  plan = scheduler.schedule();
  builder.build(plan);
  scheduler.abort(3);
  const std::span<const SampleRequest> requests = builder.sample_requests();
  REQUIRE(requests.size() == 3);
  CHECK(ints(requests[0].history) == Ints{10, 11});
  CHECK(requests[1].history.empty());
  CHECK(ints(requests[2].history) == Ints{30, 31, 32});
  for (const SampleRequest& request : requests) {
    CHECK(request.num_output_tokens == 1);
  }
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
  CHECK_THROWS_WITH_AS(builder.build(plan), "plan holds sequence 0 of group_id 1, which was aborted since",
                       std::invalid_argument);
}

}  // namespace fastpaged::test
