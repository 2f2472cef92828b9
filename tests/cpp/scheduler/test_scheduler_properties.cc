// Random operations on small pools, under random policies. World compares everything after each of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <ranges>
#include <vector>

#include "scheduler/random_requests.h"
#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

// Wishes from outside, at any moment: some for requests or branches that are not here.
class Wishes {
 public:
  Wishes(Random& random, World& world) : random_(&random), world_(&world) {}

  void add() {
    NewRequest request = random_request(*random_, ++last_id_, world_->scheduler.config());
    set_random_wishes(*random_, request, world_->now);
    world_->add(request);
  }

  void one() {
    const GroupId group = some_group();
    const std::int32_t choice = random_->between(1, 24);
    if (choice <= 2) {
      return world_->abort(group);
    }
    if (choice <= 5) {
      return world_->finish(group, some_branch(group));
    }
    if (choice <= 8) {
      return world_->preempt(group, random_mode(*random_));
    }
    if (choice <= 20) {
      return world_->fork(group, some_branch(group));
    }
    about_prefixes();
  }

  // Pins of what somebody computes, or nobody; too many; some that are not here.
  void about_prefixes() {
    const SchedulerConfig& config = world_->scheduler.config();
    const auto& pins = world_->slow.memory.pins;
    if (random_->once_in(8)) {
      return world_->reset_prefix_cache();
    }
    if (!pins.empty() && random_->once_in(2)) {
      return world_->unpin(random_->once_in(20) ? kNobody : random_->one_of(pins).first);
    }
    const PinId id = !pins.empty() && random_->once_in(20) ? random_->one_of(pins).first : ++last_pin_;
    world_->pin(id, random_prompt(*random_, random_->between(0, 3 * config.block_size + 1)), random_root(*random_));
  }

  GroupId some_group() {
    const auto& groups = world_->slow.memory.groups;
    const bool unknown = groups.empty() || random_->once_in(20);
    return unknown ? kNobody : random_->one_of(groups).first;
  }

  SequenceId some_branch(GroupId group) {
    const auto& groups = world_->slow.memory.groups;
    const bool unknown = !groups.contains(group) || random_->once_in(20);
    return unknown ? kNobody : random_->one_of(groups.at(group).branches).first;
  }

 private:
  Random* random_;
  World* world_;
  GroupId last_id_ = 0;
  PinId last_pin_ = 0;
};

struct Counts {
  std::int64_t operations = 0;
  std::int64_t preemptions = 0;
  std::int64_t ceilings = 0;
  std::int64_t shared_again = 0;
  std::int64_t parted = 0;
  std::int64_t taken_as_copies = 0;
  std::int64_t expired = 0;
  std::int64_t for_priority = 0;
  std::int64_t aged = 0;
  std::int64_t handed_out = 0;
  SchedulerStats stats;
};

// One operation: an arrival, a wish, a reset, or a step, sound or broken off anywhere.
void operate(Random& random, World& world, Wishes& wishes) {
  const std::int32_t choice = random.between(1, 100);
  if (choice <= 10) {
    return wishes.add();
  }
  if (choice <= 40) {
    return wishes.one();
  }
  if (choice == 41 && random.once_in(3)) {
    return world.reset();
  }
  world.tick = random.between(0, 3);
  const SchedulerOutput plan = world.schedule();
  if (random.once_in(12)) {
    return;  // the worker failed before it copied anything; the plan is never updated
  }
  if (random.once_in(20)) {
    wishes.one();
  }
  if (world.refuses_to_run(plan)) {
    return;
  }
  const SequenceId failing = random.once_in(15) ? wishes.some_branch(wishes.some_group()) : kNobody;
  const std::vector<SampledToken> tokens = world.run(plan, failing);
  while (random.once_in(6)) {
    wishes.one();
  }
  if (random.once_in(12)) {
    return;  // it failed after that
  }
  world.update(plan, tokens);
}

void count(Counts& counts, const World& world) {
  const SchedulerStats& stats = world.scheduler.stats();
  counts.preemptions += world.num_preemptions;
  counts.ceilings += world.num_ceilings;
  counts.shared_again += world.slow.memory.num_shared_again;
  counts.parted += world.num_parted;
  counts.expired += world.num_expired;
  counts.for_priority += world.slow.num_preempted_for_priority;
  counts.aged += world.slow.num_aged;
  counts.handed_out += world.slow.num_handed_out;
  counts.stats.num_blocks_swapped_out += stats.num_blocks_swapped_out;
  counts.stats.num_blocks_swapped_in += stats.num_blocks_swapped_in;
  counts.stats.num_blocks_copied_on_write += stats.num_blocks_copied_on_write;
  counts.stats.num_tokens_recomputed += stats.num_tokens_recomputed;
  counts.stats.num_prefix_tokens_found += stats.num_prefix_tokens_found;
  counts.stats.num_partial_prefix_blocks += stats.num_partial_prefix_blocks;
  counts.stats.num_cached_blocks_evicted += stats.num_cached_blocks_evicted;
  counts.stats.num_pins_released += stats.num_pins_released;
  counts.stats.num_prefix_blocks_demoted += stats.num_prefix_blocks_demoted;
  counts.stats.num_prefix_blocks_promoted += stats.num_prefix_blocks_promoted;
  counts.stats.num_host_prefix_tokens_found += stats.num_host_prefix_tokens_found;
  counts.stats.num_host_cached_blocks_evicted += stats.num_host_cached_blocks_evicted;
  counts.taken_as_copies += world.slow.memory.num_taken_as_copies;
}

// Growing, cutting and forgetting one big tree, over and over.
void operate_on_trees(Random& random, World& world, Wishes& wishes) {
  const auto& groups = world.slow.memory.groups;
  if (groups.empty()) {
    return wishes.add();
  }
  const GroupId group = wishes.some_group();
  const std::int32_t choice = random.between(1, 20);
  if (choice <= 8) {
    world.fork(group, wishes.some_branch(group));
  } else if (choice <= 10) {
    world.finish(group, wishes.some_branch(group));
  } else if (choice <= 12) {
    world.preempt(group, random.once_in(4) ? PreemptionMode::kSwap : PreemptionMode::kRecompute);
  } else {
    world.step();
  }
}

}  // namespace

TEST_CASE("any operations, in any order, do what the slow scheduler does; every branch hears what it hears alone") {
  constexpr int kOperations = 200;
  Counts counts;
  for (unsigned seed = 0; seed < 1500U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    World world(random_config(random, random_policy(random)));
    Wishes wishes(random, world);
    for (int i = 0; i < kOperations; ++i) {
      operate(random, world, wishes);
    }
    world.drain();
    counts.operations += kOperations;
    count(counts, world);
  }
  MESSAGE("operations: ", counts.operations, ", preemptions: ", counts.preemptions,
          ", ends at the ceiling: ", counts.ceilings, ", blocks swapped out: ", counts.stats.num_blocks_swapped_out,
          ", in: ", counts.stats.num_blocks_swapped_in, ", copied on write: ", counts.stats.num_blocks_copied_on_write,
          ", tokens recomputed: ", counts.stats.num_tokens_recomputed,
          ", branches attached again: ", counts.shared_again, ", samples parted: ", counts.parted,
          ", ended by their time: ", counts.expired);
  MESSAGE("tokens found in the prefix cache: ", counts.stats.num_prefix_tokens_found,
          ", blocks copied for their beginning: ", counts.stats.num_partial_prefix_blocks,
          ", evicted: ", counts.stats.num_cached_blocks_evicted, ", pins released: ", counts.stats.num_pins_released);
  MESSAGE("cached blocks copied to the host: ", counts.stats.num_prefix_blocks_demoted,
          ", there without a copy: ", counts.taken_as_copies,
          ", copied back: ", counts.stats.num_prefix_blocks_promoted, " (", counts.stats.num_host_prefix_tokens_found,
          " tokens), evicted there: ", counts.stats.num_host_cached_blocks_evicted);
  CHECK(counts.stats.num_prefix_blocks_demoted > 1000);
  CHECK(counts.stats.num_prefix_blocks_promoted > 100);
  CHECK(counts.stats.num_host_cached_blocks_evicted > 100);
  CHECK(counts.taken_as_copies > 20);
  MESSAGE("ended by their time: ", counts.expired, ", preempted for a priority: ", counts.for_priority,
          ", aged: ", counts.aged, ", prompts given the rest of a step: ", counts.handed_out);
  CHECK(counts.operations >= 100'000);
  CHECK(counts.preemptions > 1000);  // the pools were small enough to matter
  CHECK(counts.ceilings > 100);
  CHECK(counts.stats.num_blocks_swapped_in > 1000);
  CHECK(counts.stats.num_blocks_copied_on_write > 1000);
  CHECK(counts.stats.num_tokens_recomputed > 1000);
  CHECK(counts.shared_again > 1000);
  CHECK(counts.parted > 1000);
  CHECK(counts.expired > 1000);
  CHECK(counts.for_priority > 300);
  CHECK(counts.aged > 300);
  CHECK(counts.handed_out > 1000);
  CHECK(counts.stats.num_prefix_tokens_found > 1000);
  CHECK(counts.stats.num_partial_prefix_blocks > 1000);
  CHECK(counts.stats.num_cached_blocks_evicted > 1000);
  CHECK(counts.stats.num_pins_released > 100);
}

// Twice as much room and many branches; World checks that no rebuild takes more blocks than there were.
TEST_CASE("fork trees that grow, lose branches and are recomputed are rebuilt within the blocks they held") {
  constexpr int kOperations = 200;
  std::int64_t shared_again = 0;
  std::int64_t operations = 0;
  for (unsigned seed = 0; seed < 300U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SchedulerConfig config = random_config(random, {});
    config.num_blocks += 12;
    config.max_num_seqs = 12;
    config.max_num_rows = random.once_in(2) ? 0 : 12 + random.between(0, 4);
    config.max_model_len = 40;
    config.max_num_batched_tokens = random.between(10, 16);
    World world(config);
    Wishes wishes(random, world);
    for (int i = 0; i < kOperations; ++i) {
      operate_on_trees(random, world, wishes);
    }
    world.drain();
    shared_again += world.slow.memory.num_shared_again;
    operations += kOperations;
  }
  MESSAGE("operations: ", operations, ", branches attached again: ", shared_again);
  CHECK(shared_again > 1000);
}

}  // namespace fastpaged::test
