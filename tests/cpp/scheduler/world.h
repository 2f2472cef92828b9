// World: a scheduler, its judge (the slow scheduler) and a toy model, kept side by side through any operations. After
// each of them everything is compared: queues, tables block by block, free lists, plans, copies, events, statistics;
// and every branch hears what it would hear alone.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"
#include "kv_cache/slow_kv_cache.h"
#include "proof_scale.h"
#include "scheduler/compare.h"
#include "scheduler/slow_scheduler.h"
#include "scheduler/toy_model.h"

namespace fastpaged::test {

inline constexpr std::uint64_t kNobody = ~0ULL;  // no group's, no branch's id

// REQUIRES: ids of groups grow with arrival.
class World {
 public:
  explicit World(const SchedulerConfig& config)
      : scheduler(config), slow(config), builder_(scheduler), model_(scheduler.kv_cache()) {}

  void add(const NewRequest& request) {
    scheduler.add(request);
    const SequenceId branch = slow.add(request);
    expect(request.id, branch);
    check();
  }

  void abort(GroupId id) {
    REQUIRE(scheduler.abort(id) == slow.abort(id));
    forget_gone();
    check();
  }

  void finish(GroupId id, SequenceId branch) {
    REQUIRE(scheduler.finish(id, branch) == slow.finish(id, branch));
    forget_gone();
    check();
  }

  // A refused fork is an error and changes nothing.
  void fork(GroupId id, SequenceId branch) {
    if (slow.may_fork(id, branch)) {
      const SequenceId child = scheduler.fork(id, branch);
      REQUIRE(child == slow.fork(id, branch));
      expect(id, child);
    } else {
      CHECK_THROWS_AS(scheduler.fork(id, branch), std::invalid_argument);
    }
    check();
  }

  void preempt(GroupId id, PreemptionMode mode) {
    REQUIRE(scheduler.preempt(id, mode) == slow.preempt(id, mode));
    undisturbed_ = false;
    check();
  }

  void set_costs(const PreemptionCosts& costs) {
    scheduler.set_costs(costs);
    slow.set_costs(costs);
  }

  void reset() {
    scheduler.reset();
    slow.reset(all_free(scheduler.kv_cache().device_pool()), all_free(scheduler.kv_cache().host_pool()));
    forget_gone();
    check_drained();
    check();
  }

  // A refused pin is an error and changes nothing.
  void pin(PinId id, const std::vector<TokenId>& tokens, const std::string& root) {
    if (slow.may_pin(id, tokens)) {
      slow.pin(id, tokens, root);
      REQUIRE(scheduler.pin(id, tokens, root) == std::ssize(slow.memory.pins.at(id).blocks));
    } else {
      CHECK_THROWS_AS(scheduler.pin(id, tokens, root), std::invalid_argument);
    }
    check();
  }

  void unpin(PinId id) {
    REQUIRE(scheduler.unpin(id) == slow.unpin(id));
    check();
  }

  void reset_prefix_cache() {
    scheduler.reset_prefix_cache();
    slow.reset_prefix_cache();
    check();
  }

  // Not always followed by an update(): then the plan is forgotten.
  SchedulerOutput schedule() {
    undisturbed_ = undisturbed_ && slow.reported;
    const std::size_t ended_before = slow.unreported.size();
    const bool work = !slow.memory.groups.empty();
    now += tick;
    SchedulerOutput plan = scheduler.schedule(now);
    slow.schedule(now);
    ++num_steps;
    num_preemptions += std::ssize(plan.preempted);
    check_plan(plan);
    REQUIRE((!work || plan.num_tokens > 0 || plan.ended.size() > ended_before));  // never idle
    if (undisturbed_ && !scheduler.config().policy.swapped_before_waiting) {
      REQUIRE(std::ranges::count(plan.preempted, slow.first_in_rank.value_or(kNobody)) == 0);
    }
    check();
    return plan;
  }

  // A plan from which a branch has gone cannot be run.
  bool refuses_to_run(const SchedulerOutput& plan) {
    const bool whole = std::ranges::all_of(plan.scheduled, [&](const ScheduledSequence& planned) {
      const auto group = slow.memory.groups.find(planned.group_id);
      return group != slow.memory.groups.end() && group->second.branches.contains(planned.sequence_id);
    });
    if (!whole) {
      REQUIRE_THROWS_AS(builder_.build(plan), std::invalid_argument);
    }
    return !whole;
  }

  // failing: a branch of whose results one, if it has any in this step, is a failure.
  std::vector<SampledToken> run(const SchedulerOutput& plan, SequenceId failing = kNobody) {
    model_.copy(plan.copies);
    model_.poison_free_blocks(scheduler.kv_cache());
    const Batch& batch = builder_.build(plan);
    const std::vector<SequenceId> branches = check_requests(plan, batch);
    std::vector<SampledToken> tokens = model_.run(batch, builder_.sample_requests());
    const std::int64_t num_failing = std::ranges::count(branches, failing);
    std::int64_t until_failure = num_failing == 0 ? -1 : num_steps % num_failing;
    results_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i].ok = branches[i] != failing || until_failure-- != 0;
      results_[branches[i]].push_back(tokens[i].ok ? std::optional(tokens[i].token_id) : std::nullopt);
    }
    return tokens;
  }

  void update(const SchedulerOutput& plan, const std::vector<SampledToken>& tokens) {
    const std::vector<SequenceEvent> expected = slow.update(results_);
    const std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
    REQUIRE(events.size() == expected.size());
    for (std::size_t i = 0; i < events.size(); ++i) {
      check_event(events[i], expected[i]);
      part(events[i]);
    }
    std::ranges::for_each(events, [&](const SequenceEvent& event) { hear(event); });
    check();
  }

  void step() {
    const SchedulerOutput plan = schedule();
    update(plan, run(plan));
  }

  void drain() {
    const std::int64_t enough = num_steps + 10 * num_branches * (num_branch_tokens + 1);
    while (scheduler.has_unfinished()) {
      REQUIRE(num_steps < enough);
      step();
    }
    check_drained();
  }

  // But for pins.
  void check_drained() const {
    REQUIRE(slow.memory.groups.empty());
    REQUIRE(told_.empty());
    REQUIRE_FALSE(scheduler.has_unfinished());
    REQUIRE(scheduler.num_waiting() + scheduler.num_running() + scheduler.num_swapped() == 0);
    const KVCacheManager& kv_cache = scheduler.kv_cache();
    std::set<BlockId> pinned;
    for (const SlowPin& pin : slow.memory.pins | std::views::values) {
      pinned.insert(pin.blocks.begin(), pin.blocks.end());
    }
    REQUIRE(kv_cache.num_free_blocks() == kv_cache.num_blocks() - std::ssize(pinned));
    REQUIRE(kv_cache.host_pool().num_free() == kv_cache.host_pool().num_blocks());
  }

  Scheduler scheduler;
  SlowScheduler slow;
  bool checks_all = true;  // false: for a while, states are not compared
  std::int64_t num_steps = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_ceilings = 0;
  std::int64_t num_expired = 0;
  Nanoseconds now = 0;   // of the last step
  Nanoseconds tick = 1;  // between two
  // What the liveness bounds are made of, over all branches there ever were.
  std::int64_t num_branches = 0;
  std::int64_t num_output_tokens = 0;  // that they may have, each
  std::int64_t num_branch_tokens = 0;  // prompt and output, each
  std::int64_t num_requests = 0;
  std::int64_t num_scores = 0;  // that are wanted
  std::int64_t num_parted = 0;  // samples, from the first of their request

 private:
  struct Told {
    GroupId group = 0;
    bool alone = true;  // never in company of another branch
    PlainAnswer all;
    std::vector<PlainAnswer> other_samples = {};  // that are still to part from this one
    std::size_t heard = 0;
    std::int64_t scores_to_come = 0;
  };

  // Whose each result will be, once it is clear that the batch has the plan's rows, and what is to be done with each.
  [[nodiscard]] std::vector<SequenceId> check_requests(const SchedulerOutput& plan, const Batch& batch) const {
    const std::span<const SampleRequest> requests = builder_.sample_requests();
    REQUIRE(std::ssize(requests) == plan.num_results);
    REQUIRE(std::ssize(batch.sample_rows) == plan.num_rows);
    std::vector<SequenceId> branches;
    std::int32_t row = 0;
    std::int64_t first_token = 0;
    for (const ScheduledSequence& planned : plan.scheduled) {
      const SlowGroup& group = slow.memory.groups.at(planned.group_id);
      const SlowBranch& branch = group.branches.at(planned.sequence_id);
      for (std::int64_t i = 0; i < planned.num_tokens; ++i) {
        const std::int64_t position = planned.first_token + i;
        const bool scores = branch.unscored.contains(position);
        const bool samples = position + 1 == std::ssize(branch.tokens);
        for (std::int32_t draw = 0; draw < (scores ? 1 : samples ? planned.num_draws : 0); ++draw) {
          const SampleRequest& request = requests[branches.size()];
          REQUIRE(request.row == row);
          REQUIRE(request.position == position + 1);
          REQUIRE(request.given == (scores ? std::optional(branch.tokens[position + 1]) : std::nullopt));
          REQUIRE((scores || request.sample_index == branch.branch + draw));
          REQUIRE(request.params.seed == group.asked.sampling.seed);
          branches.push_back(planned.sequence_id);
        }
        if (scores || samples) {
          REQUIRE(batch.sample_rows[row++] == first_token + i);
        }
      }
      first_token += planned.num_tokens;
    }
    REQUIRE(row == plan.num_rows);
    REQUIRE(std::ssize(branches) == plan.num_results);
    return branches;
  }

  // What the branch will say from here on; and, if its request's samples are still to part, each of them.
  void expect(GroupId id, SequenceId branch_id) {
    const SlowGroup& group = slow.memory.groups.at(id);
    const SlowBranch& branch = group.branches.at(branch_id);
    Told& told = told_[branch_id];
    told = {.group = id, .all = answer(group, branch, branch.branch), .scores_to_come = std::ssize(branch.unscored)};
    for (std::int32_t i = 1; i < group.num_draws; ++i) {
      told.other_samples.push_back(answer(group, branch, i));
    }
    for (auto& [other_id, other] : told_) {
      other.alone = other.alone && (other.group != id || group.counted() == 1);
    }
    const std::int64_t output =
        std::min<std::int64_t>(group.asked.stop.max_tokens, scheduler.config().max_model_len - branch.prompt);
    num_requests += group.size() == 1 ? 1 : 0;
    num_scores += told.scores_to_come;
    num_branches += group.num_draws;
    num_output_tokens += group.num_draws * output;
    num_branch_tokens += group.num_draws * (branch.prompt + output);
  }

  [[nodiscard]] PlainAnswer answer(const SlowGroup& group, const SlowBranch& branch, std::int32_t sample_index) const {
    const std::int64_t answered = std::ssize(branch.tokens) - branch.prompt;
    const Voice voice = voice_of(group.asked.sampling.seed, sample_index);
    return answer_plainly(branch.tokens, answered, voice, group.asked.stop, scheduler.config());
  }

  // Samples that have parted from the first one are heard from now on.
  void part(const SequenceEvent& event) {
    if (event.sequence_id != event.parent_id) {
      const Told& parent = told_.at(event.parent_id);
      REQUIRE(parent.heard == 0);
      REQUIRE(std::cmp_less_equal(event.branch, parent.other_samples.size()));
      told_[event.sequence_id] = {
          .group = event.group_id, .alone = false, .all = parent.other_samples.at(event.branch - 1)};
      ++num_parted;
    }
  }

  void forget_gone() {
    std::erase_if(told_, [&](const auto& entry) {
      const auto group = slow.memory.groups.find(entry.second.group);
      const bool ended = std::ranges::any_of(
          slow.unreported, [&](const SequenceEvent& event) { return event.sequence_id == entry.first; });
      return !ended && (group == slow.memory.groups.end() || !group->second.branches.contains(entry.first));
    });
  }

  void hear(const SequenceEvent& event) {
    REQUIRE(told_.contains(event.sequence_id));  // neither gone nor ended before
    Told& told = told_.at(event.sequence_id);
    told.scores_to_come -= event.num_scores;
    REQUIRE(told.scores_to_come >= 0);
    if (event.has_token) {
      REQUIRE(told.scores_to_come == 0);  // the prompt's are complete when the answer begins
      REQUIRE(told.heard < told.all.tokens.size());
      REQUIRE(event.token_id == told.all.tokens[told.heard]);
      ++told.heard;
    }
    if (!event.finished) {
      return;
    }
    const bool at_ceiling = !event.has_token && event.finish_reason == FinishReason::kLength;
    num_ceilings += at_ceiling ? 1 : 0;
    const bool expired =
        event.finish_reason == FinishReason::kDeadline || event.finish_reason == FinishReason::kQueueTimeout;
    REQUIRE((!expired || !event.has_token));
    REQUIRE((event.finish_reason != FinishReason::kQueueTimeout || told.heard == 0));
    num_expired += expired ? 1 : 0;
    if (event.finish_reason != FinishReason::kError && !expired && (told.alone || !at_ceiling)) {
      REQUIRE(told.heard == told.all.tokens.size());
      REQUIRE(event.finish_reason == told.all.reason);
    }
    told_.erase(event.sequence_id);
  }

  void check_plan(const SchedulerOutput& plan) const {
    const SchedulerOutput& expected = slow.plan;
    REQUIRE(plan.scheduled == expected.scheduled);
    REQUIRE(plan.preempted == expected.preempted);
    REQUIRE(plan.swapped_out == expected.swapped_out);
    REQUIRE(plan.swapped_in == expected.swapped_in);
    REQUIRE(plan.num_tokens == expected.num_tokens);
    REQUIRE(plan.num_samples == expected.num_samples);
    REQUIRE(plan.num_rows == expected.num_rows);
    REQUIRE(plan.num_results == expected.num_results);
    REQUIRE(plan.num_tokens <= scheduler.config().max_num_batched_tokens);
    REQUIRE((scheduler.config().max_num_rows == 0 || plan.num_rows <= scheduler.config().max_num_rows));
    REQUIRE(one_by_one(plan.copies) == expected.copies);
    REQUIRE(plan.cached == expected.cached);
    REQUIRE(plan.ended.size() == expected.ended.size());
    for (const ScheduledSequence& planned : plan.scheduled) {
      REQUIRE(slow.memory.groups.at(planned.group_id).asked.deadline > now);
    }
    for (const auto& [id, num_tokens] : plan.cached) {
      REQUIRE((!slow.memory.groups.contains(id) || slow.memory.groups.at(id).asked.queue_deadline > now));
    }
    for (std::size_t i = 0; i < plan.ended.size(); ++i) {
      check_event(plan.ended[i], expected.ended[i]);
      const GroupId id = plan.ended[i].group_id;
      REQUIRE((!plan.ended[i].group_finished ||  // nobody had to go for it
               std::ranges::count(slow.preempted_for | std::views::values, id) == 0));
    }
  }

  void check() const {
    if (!checks_all) {
      return;
    }
    scheduler.check_invariants();
    const SlowMemory& memory = slow.memory;
    check_blocks(scheduler, memory);
    REQUIRE(scheduler.num_waiting() == std::ssize(slow.ids(GroupState::kWaiting)));
    REQUIRE(scheduler.num_running() == std::ssize(slow.ids(GroupState::kRunning)));
    REQUIRE(scheduler.num_swapped() == std::ssize(slow.ids(GroupState::kSwapped)));
    REQUIRE(scheduler.has_unfinished() == (!memory.groups.empty() || !slow.unreported.empty()));
    REQUIRE(scheduler.stats() == slow.stats);
    for (const auto& [id, expected] : memory.groups) {
      check_group(scheduler.group(id), expected);
    }
  }

  BatchBuilder builder_;
  ToyModel model_;
  SlowScheduler::Results results_;
  std::map<SequenceId, Told> told_;  // branches still to be answered
  bool undisturbed_ = true;          // nothing was forced, no plan forgotten
};

}  // namespace fastpaged::test
