// A service that quarantines when something throws: what tests of broken invariants have in common.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "scheduler/examples.h"
#include "scheduler/toy_model.h"

namespace fastpaged::test {

// Serves requests with the toy model.
class QuarantinedService {
 public:
  explicit QuarantinedService(const SchedulerConfig& config)
      : scheduler(config), builder_(scheduler), model_(scheduler.kv_cache()) {}

  void add(const NewRequest& request) {
    scheduler.add(request);
    for (std::int32_t i = 0; i < request.num_samples; ++i) {
      expected_[{request.id, i}] = answer_plainly(request.prompt_token_ids, 0, voice_of(request.sampling.seed, i),
                                                  request.stop, scheduler.config());
    }
  }

  void step() {
    try {
      const SchedulerOutput plan = scheduler.schedule();
      model_.copy(plan.copies);
      const Batch& batch = builder_.build(plan);
      const std::vector<SampledToken> tokens = model_.run(batch, builder_.sample_requests());
      before_update();
      hear(scheduler.update(plan, tokens));
    } catch (const std::logic_error& error) {
      CAPTURE(error.what());
      REQUIRE_FALSE(quarantine().found.empty());
    }
    scheduler.check_invariants();
    scheduler.check_references();
  }

  Quarantine quarantine() {
    Quarantine done = scheduler.quarantine();
    scheduler.check_invariants();
    hear(done.events);
    failed.insert(done.failed.begin(), done.failed.end());
    REQUIRE(scheduler.quarantine().found.empty());  // nothing is wrong any more
    return done;
  }

  void drain() {
    for (int steps = 0; scheduler.has_unfinished(); ++steps) {
      REQUIRE(steps < 10'000);
      step();
    }
  }

  // Everyone who has not failed was answered as if alone.
  void check_answers() const {
    for (const auto& [who, answer] : expected_) {
      if (!failed.contains(who.first)) {
        CAPTURE(who.first);
        REQUIRE(answers.contains(who));
        REQUIRE(answers.at(who) == answer.tokens);
      }
    }
  }

  [[nodiscard]] BlockTable& table(GroupId id, std::size_t branch = 0) const {
    return scheduler.group(id).sequences.at(branch)->table();
  }

  // Gives a block back that the table goes on listing.
  static void give_back_too_early(BlockTable& table, std::int32_t index) {
    table.replace(index, table.blocks()[static_cast<std::size_t>(index)]);
  }

  Scheduler scheduler;
  std::map<std::pair<GroupId, std::int32_t>, std::vector<TokenId>> answers;
  std::set<GroupId> failed;
  std::function<void()> before_update = [] {};

 private:
  void hear(const std::vector<SequenceEvent>& events) {
    for (const SequenceEvent& event : events) {
      if (event.has_token) {
        answers[{event.group_id, event.branch}].push_back(event.token_id);
      }
      REQUIRE_FALSE(failed.contains(event.group_id));
    }
  }

  BatchBuilder builder_;
  ToyModel model_;
  std::map<std::pair<GroupId, std::int32_t>, PlainAnswer> expected_;
};

inline NewRequest asks(GroupId id, std::int32_t prompt, std::int32_t max_tokens) {
  NewRequest wanted = request(id, prompt, max_tokens);
  wanted.sampling.seed = id;
  return wanted;
}

}  // namespace fastpaged::test
