// Whatever happens to requests, a snapshot says of every slot what it is, of every block who holds it, and of every
// request what it holds; and whoever follows the cache's events knows what is cached.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "proof_scale.h"
#include "proofs/fake_engine.h"
#include "proofs/random_results.h"
#include "proofs/slow_snapshot.h"
#include "random.h"
#include "scheduler/random_requests.h"

namespace fastpaged::test {
namespace {

SchedulerConfig config_of_a_life(Random& random) {
  SchedulerConfig config = random_config(random, random_policy(random));
  config.num_blocks = random.between(4, 24);
  config.max_cache_events = 1000;
  return config;
}

NewRequest request_of_a_life(Random& random, GroupId id, const SchedulerConfig& config) {
  NewRequest request = random_request(random, id, config);
  if (random.once_in(4)) {
    BeamParams& beam = request.sampling.beam.emplace();
    request.num_samples = 1;
    beam.width = random.between(1, std::min({config.max_num_seqs, config.max_num_batched_tokens, 4}));
    beam.num_candidates = beam.width * (1 + std::max(1, static_cast<std::int32_t>(request.stop.stop_token_ids.size())));
  }
  return request;
}

// A life of which a snapshot is taken after everything that happens.
class SeenLife {
 public:
  SeenLife(std::uint32_t seed, SlowSnapshot::Names& names)
      : random_(seed), engine_(config_of_a_life(random_), 2), seen(engine_, names) {}

  void step() {
    between_steps();
    plan_ = engine_.schedule();
    look();
    engine_.copy(plan_->copies);
    if (random_.once_in(10)) {
      maybe_end_somebody(1);
    }
    if (random_.once_in(10) || !engine_.all_of_it_is_here(*plan_)) {
      return;  // the step fails, and its plan stays out until the next one is made
    }
    engine_.compute(*plan_);
    engine_.update(*plan_, RandomResults(random_, *plan_, engine_.requests(), 40).rows());
    plan_.reset();
    look();
  }

 private:
  void look() { seen.check(plan_); }

  void between_steps() {
    const SchedulerConfig& config = engine_.scheduler().config();
    if (engine_.groups().size() < 6 && random_.once_in(2)) {
      engine_.add(request_of_a_life(random_, next_id_++, config));
      look();
    }
    if (config.prefix_caching && random_.once_in(6)) {
      const std::string root = random_root(random_);
      engine_.pin(next_pin_++, random_prompt(random_, random_.between(0, 3 * config.block_size)), root);
      look();
    }
    if (!engine_.cache().pins().empty() && random_.once_in(10)) {
      engine_.unpin(random_.one_of(engine_.cache().pins()).first);
      look();
    }
    maybe_end_somebody(12);
    for (const GroupId id : engine_.groups()) {
      if (random_.once_in(6) && engine_.may_fork(id)) {
        std::vector<SequenceId> branches = engine_.branches(id);
        engine_.fork(id, random_.one_of(branches));
        look();
      }
      if (random_.once_in(15)) {
        engine_.preempt(id, random_mode(random_));
      }
    }
    if (random_.once_in(100)) {
      engine_.reset_prefix_cache();
      look();
    }
  }

  void maybe_end_somebody(std::int32_t once_in) {
    std::vector<GroupId> groups = engine_.groups();
    if (groups.empty() || !random_.once_in(once_in)) {
      return;
    }
    const GroupId id = random_.one_of(groups);
    if (random_.once_in(2)) {
      std::vector<SequenceId> branches = engine_.branches(id);
      engine_.finish(id, random_.one_of(branches));
    } else {
      engine_.abort(id);
    }
    look();
  }

  Random random_;
  FakeEngine engine_;
  std::optional<SchedulerOutput> plan_;  // that is out
  GroupId next_id_ = 1;
  PinId next_pin_ = 1;

 public:
  SlowSnapshot seen;
};

}  // namespace

TEST_CASE("a snapshot says of every slot, block and request what counting one by one says, at any moment") {
  SlowSnapshot::Names names;
  std::int64_t num_reserved = 0;
  std::int64_t num_on_host = 0;
  std::int64_t num_pinned = 0;
  std::int64_t num_events = 0;
  for (std::uint32_t seed = 0; seed < 200U * static_cast<unsigned>(proof_scale()); ++seed) {
    CAPTURE(seed);
    SeenLife life(seed, names);
    for (int i = 0; i < 60; ++i) {
      life.step();
    }
    num_reserved += life.seen.num_reserved;
    num_on_host += life.seen.num_on_host;
    num_pinned += life.seen.num_pinned;
    num_events += life.seen.num_events;
  }
  std::set<std::uint64_t> different;
  for (const auto& [text, name] : names) {
    different.insert(name);
  }
  CHECK(different.size() == names.size());  // no two texts have the same name
  CHECK(names.size() > 1000);
  CHECK(num_reserved > 1000);
  CHECK(num_on_host > 1000);
  CHECK(num_pinned > 1000);
  CHECK(num_events > 1000);
}

}  // namespace fastpaged::test
