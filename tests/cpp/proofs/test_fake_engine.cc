// Whatever happens to requests, no computed token is ever lost, mixed up, or read from where it is not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "proof_scale.h"
#include "proofs/fake_engine.h"
#include "proofs/random_results.h"
#include "random.h"
#include "scheduler/random_requests.h"

namespace fastpaged::test {
namespace {

// How often each kind of thing happened.
struct Occurred {
  std::int64_t steps = 0;
  std::int64_t slots_checked = 0;
  std::int64_t pool_ends = 0;
  std::int64_t expired = 0;
  std::int64_t forks = 0;
  std::int64_t parted = 0;
  std::int64_t beams_forked = 0;
  std::int64_t beam_results = 0;
  std::int64_t found_again = 0;
  std::int64_t cached_slots_checked = 0;
  std::int64_t cached_host_slots_checked = 0;
  std::int64_t pins_refused = 0;
  std::int64_t cache_resets = 0;
  std::int64_t trees_rebuilt = 0;
  std::int64_t resets = 0;
  std::int64_t aborts_while_planned = 0;
  std::map<GroupState, std::int64_t> aborts;
  // Plans that were never updated, by how many of their copies were run.
  std::int64_t forgotten_with_all_copies = 0;
  std::int64_t forgotten_with_some = 0;
  std::int64_t forgotten_with_none = 0;
  SchedulerStats stats;

  void add(const FakeEngine& engine) {
    slots_checked += engine.counts().slots_checked;
    pool_ends += engine.counts().pool_ends;
    expired += engine.counts().expired;
    parted += engine.requests().num_parted();
    beams_forked += engine.requests().num_beams_forked();
    beam_results += engine.requests().num_results();
    found_again += engine.counts().num_found_again;
    cached_slots_checked += engine.cache().num_slots_checked();
    cached_host_slots_checked += engine.cache().num_host_slots_checked();
    pins_refused += engine.counts().num_refused_pins;
    trees_rebuilt += engine.num_trees_rebuilt();
    const SchedulerStats& more = engine.counts().stats;
    stats.num_preemptions += more.num_preemptions;
    stats.num_groups_swapped_out += more.num_groups_swapped_out;
    stats.num_groups_swapped_in += more.num_groups_swapped_in;
    stats.num_blocks_swapped_out += more.num_blocks_swapped_out;
    stats.num_blocks_swapped_in += more.num_blocks_swapped_in;
    stats.num_blocks_copied_on_write += more.num_blocks_copied_on_write;
    stats.num_tokens_recomputed += more.num_tokens_recomputed;
    stats.num_prefix_tokens_found += more.num_prefix_tokens_found;
    const SchedulerStats& seen = engine.scheduler().stats();
    stats.num_partial_prefix_blocks += seen.num_partial_prefix_blocks;
    stats.num_cached_blocks_evicted += seen.num_cached_blocks_evicted;
    stats.num_pins_released += seen.num_pins_released;
    stats.num_prefix_blocks_demoted += seen.num_prefix_blocks_demoted;
    stats.num_prefix_blocks_promoted += seen.num_prefix_blocks_promoted;
    stats.num_host_prefix_tokens_found += seen.num_host_prefix_tokens_found;
  }
};

SchedulerConfig config_of_a_life(Random& random) {
  SchedulerConfig config = random_config(random, random_policy(random));
  if (random.once_in(3)) {  // room for more to go wrong
    config.num_blocks = random.between(8, 24);
    config.num_host_blocks = random.between(0, 24);
  }
  config.host_prefix_tier = config.prefix_caching && random.once_in(2);
  config.costs = random_costs(random);
  return config;
}

// One in four samples no token, but follows its likeliest continuations.
NewRequest request_of_a_life(Random& random, GroupId id, const SchedulerConfig& config) {
  NewRequest request = random_request(random, id, config);
  if (random.once_in(4)) {
    BeamParams& beam = request.sampling.beam.emplace();
    request.num_samples = 1;
    beam.width = random.between(1, std::min({config.max_num_seqs, config.max_num_batched_tokens, 4}));
    beam.length_penalty = 0.5 * random.between(-1, 3);
    beam.early_stopping = static_cast<EarlyStopping>(random.between(0, 2));
    beam.num_candidates = beam.width * (1 + std::max(1, static_cast<std::int32_t>(request.stop.stop_token_ids.size())));
  }
  return request;
}

class Life {
 public:
  Life(Random& random, Occurred& occurred)
      : random_(random), occurred_(occurred), engine_(config_of_a_life(random), random.between(2, 3)) {}

  void step() {
    ++occurred_.steps;
    between_steps();
    const SchedulerOutput plan = engine_.schedule(engine_.now() + random_.between(0, 3));
    if (random_.once_in(10)) {
      return forget(plan);
    }
    engine_.copy(plan.copies);
    maybe_end_somebody();
    if (!engine_.all_of_it_is_here(plan)) {
      CHECK_THROWS_AS(engine_.compute(plan), std::invalid_argument);
      return;
    }
    engine_.compute(plan);
    maybe_end_somebody();
    if (random_.once_in(200)) {
      ++occurred_.resets;
      return engine_.reset();
    }
    engine_.update(plan, RandomResults(random_, plan, engine_.requests(), 40).rows());
  }

  void quiet_step() {
    ++occurred_.steps;
    const SchedulerOutput plan = engine_.schedule();
    engine_.copy(plan.copies);
    engine_.compute(plan);
    engine_.update(plan, RandomResults(random_, plan, engine_.requests(), 1000).rows());
  }

  [[nodiscard]] bool is_over() const { return !engine_.scheduler().has_unfinished(); }

  void end() {
    engine_.check_all_given_back();
    occurred_.add(engine_);
  }

 private:
  void between_steps() {
    keep_prefixes();
    std::vector<GroupId> groups = engine_.groups();
    if (groups.size() < 8 && random_.once_in(groups.size() < 3 ? 1 : 3)) {
      NewRequest request = request_of_a_life(random_, next_id_++, engine_.scheduler().config());
      set_random_wishes(random_, request, engine_.now());
      engine_.add(request);
    }
    maybe_end_somebody();
    for (const GroupId id : engine_.groups()) {
      if (random_.once_in(4) && engine_.may_fork(id)) {
        std::vector<SequenceId> branches = engine_.branches(id);
        engine_.fork(id, random_.one_of(branches));
        ++occurred_.forks;
      }
    }
    const bool all = random_.once_in(20);
    for (const GroupId id : engine_.groups()) {
      if (all || random_.once_in(15)) {
        engine_.preempt(id, random_mode(random_));
      }
    }
  }

  // Pins come and go; some are of what nobody has computed, some of too much.
  void keep_prefixes() {
    const SchedulerConfig& config = engine_.scheduler().config();
    if (config.prefix_caching && random_.once_in(8)) {
      const std::int32_t length = random_.between(0, 3 * config.block_size + 2);
      const std::string root = random_root(random_);
      engine_.pin(next_pin_++, random_prompt(random_, length), root);
    }
    const auto& pins = engine_.cache().pins();
    if (!pins.empty() && random_.once_in(12)) {
      engine_.unpin(random_.one_of(pins).first);
    }
    if (random_.once_in(150)) {
      engine_.reset_prefix_cache();
      ++occurred_.cache_resets;
    }
  }

  void maybe_end_somebody() {
    std::vector<GroupId> groups = engine_.groups();
    if (groups.empty() || !random_.once_in(12)) {
      return;
    }
    const GroupId id = random_.one_of(groups);
    std::vector<SequenceId> branches = engine_.branches(id);
    if (random_.once_in(2)) {
      return engine_.finish(id, random_.one_of(branches));
    }
    ++occurred_.aborts[engine_.scheduler().group(id).state];
    for (const PlannedSequence& planned : engine_.scheduler().plan().sequences()) {
      occurred_.aborts_while_planned += planned.group != nullptr && planned.what.group_id == id ? 1 : 0;
    }
    engine_.abort(id);
  }

  // As if the worker had failed, before, while or after copying.
  void forget(const SchedulerOutput& plan) {
    const auto num_copies = static_cast<std::int32_t>(plan.copies.size());
    const bool all = random_.once_in(2);
    const std::int32_t num_run = all ? num_copies : random_.between(0, random_.once_in(3) ? 0 : num_copies);
    engine_.copy(std::span(plan.copies).first(num_run));
    if (num_copies > 0) {
      ++(num_run == num_copies ? occurred_.forgotten_with_all_copies
         : num_run == 0        ? occurred_.forgotten_with_none
                               : occurred_.forgotten_with_some);
    }
    if (random_.once_in(2)) {
      engine_.spoil_free_blocks();
    }
  }

  Random& random_;
  Occurred& occurred_;
  FakeEngine engine_;
  GroupId next_id_ = 1;
  PinId next_pin_ = 1;
};

void print(const Occurred& occurred) {
  const SchedulerStats& stats = occurred.stats;
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::printf("fake engine: %lld steps, %lld slots checked, %lld forks, %lld fork trees rebuilt\n",
              number(occurred.steps), number(occurred.slots_checked), number(occurred.forks),
              number(occurred.trees_rebuilt));
  std::printf("fake engine: %lld preemptions, %lld groups swapped out and %lld in (%lld and %lld blocks), ",
              number(stats.num_preemptions), number(stats.num_groups_swapped_out), number(stats.num_groups_swapped_in),
              number(stats.num_blocks_swapped_out), number(stats.num_blocks_swapped_in));
  std::printf("%lld blocks copied on write, %lld tokens recomputed\n", number(stats.num_blocks_copied_on_write),
              number(stats.num_tokens_recomputed));
  std::printf("fake engine: %lld requests parted into samples, %lld beams forked, %lld results of beams\n",
              number(occurred.parted), number(occurred.beams_forked), number(occurred.beam_results));
  std::printf(
      "fake engine: %lld requests found %lld tokens cached, %lld partial blocks; %lld blocks evicted, %lld pins ",
      number(occurred.found_again), number(stats.num_prefix_tokens_found), number(stats.num_partial_prefix_blocks),
      number(stats.num_cached_blocks_evicted), number(stats.num_pins_released));
  std::printf("released for room; %lld cached slots checked, %lld of them on the host\n",
              number(occurred.cached_slots_checked), number(occurred.cached_host_slots_checked));
  std::printf("fake engine: %lld cached blocks moved to the host and %lld back, %lld tokens found there; %lld ends by ",
              number(stats.num_prefix_blocks_demoted), number(stats.num_prefix_blocks_promoted),
              number(stats.num_host_prefix_tokens_found), number(occurred.expired));
  std::printf("their time\n");
}

}  // namespace

TEST_CASE("all live history is where the tables say after every step, and is paid for as counted, whatever happens") {
  Occurred occurred;
  const std::int64_t enough = std::int64_t{60'000} * proof_scale();
  for (std::uint32_t seed = 0; occurred.steps < enough; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Life life(random, occurred);
    for (int i = 0; i < 60; ++i) {
      CAPTURE(i);
      life.step();
    }
    for (int i = 0; !life.is_over(); ++i) {
      CAPTURE(i);
      REQUIRE(i < 2000);
      life.quiet_step();
    }
    life.end();
  }
  print(occurred);
  const SchedulerStats& stats = occurred.stats;
  for (const std::int64_t times : {occurred.forks,
                                   occurred.parted,
                                   occurred.beams_forked,
                                   occurred.beam_results,
                                   occurred.found_again,
                                   occurred.pins_refused,
                                   occurred.cache_resets,
                                   stats.num_partial_prefix_blocks,
                                   stats.num_cached_blocks_evicted,
                                   stats.num_pins_released,
                                   occurred.trees_rebuilt,
                                   occurred.pool_ends,
                                   occurred.expired,
                                   occurred.cached_host_slots_checked,
                                   stats.num_prefix_blocks_demoted,
                                   stats.num_prefix_blocks_promoted,
                                   occurred.resets,
                                   occurred.aborts_while_planned,
                                   occurred.aborts[GroupState::kWaiting],
                                   occurred.aborts[GroupState::kRunning],
                                   occurred.aborts[GroupState::kSwapped],
                                   occurred.forgotten_with_all_copies,
                                   occurred.forgotten_with_some,
                                   occurred.forgotten_with_none,
                                   stats.num_preemptions,
                                   stats.num_groups_swapped_out,
                                   stats.num_groups_swapped_in,
                                   stats.num_blocks_copied_on_write,
                                   stats.num_tokens_recomputed}) {
    CHECK(times >= 20);
  }
}

}  // namespace fastpaged::test
