// The scheduling policy said as plainly as possible: requests in a map in order of arrival, everything looked up and
// counted again each time. The real scheduler must decide the same, block by block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "scheduler/slow_results.h"

namespace fastpaged::test {

class SlowScheduler : public SlowResults {
 public:
  using SlowResults::SlowResults;

  std::int64_t num_preempted_for_priority = 0;

  SequenceId add(const NewRequest& request) {
    SlowGroup& group = groups()[request.id];
    group.asked = request;
    group.num_draws = request.num_samples;
    SlowBranch& branch = group.branches[next_id_];
    branch.tokens = request.prompt_token_ids;
    branch.prompt = std::ssize(branch.tokens);
    for (std::int64_t i = 0; request.sampling.num_prompt_logprobs && i + 1 < branch.prompt; ++i) {
      branch.unscored.insert(i);
    }
    return next_id_++;
  }

  bool abort(GroupId id) {
    const bool here = groups().contains(id);
    if (here) {
      memory.erase_group(id);
    }
    return here;
  }

  bool finish(GroupId id, SequenceId branch) {
    const bool here = has(id, branch);
    if (here) {
      end(id, branch);
    }
    return here;
  }

  [[nodiscard]] bool may_fork(GroupId id, SequenceId branch) const {
    if (!reported || !has(id, branch)) {
      return false;
    }
    const SlowGroup& group = memory.groups.at(id);
    return group.state == GroupState::kRunning && group.decodes() && group.num_draws == 1 &&
           num_running_branches() < config_.max_num_seqs && group.size() < config_.max_num_batched_tokens;
  }

  // REQUIRES: may_fork.
  SequenceId fork(GroupId id, SequenceId branch) {
    SlowBranch child = groups().at(id).branches.at(branch);
    child.blocks.resize(memory.blocks_for(child.computed));
    child.most_computed = child.computed;
    child.branch = groups().at(id).num_branches++;
    groups().at(id).branches[next_id_] = child;
    return next_id_++;
  }

  void set_costs(const PreemptionCosts& costs) {
    config_.costs = costs;
    weigh_evictions();
  }

  bool preempt(GroupId id, PreemptionMode mode) {
    if (groups().contains(id)) {
      forced_.emplace_back(id, mode);
    }
    return groups().contains(id);
  }

  // free_device, free_host: in whatever order the blocks of many requests came back.
  void reset(const std::vector<BlockId>& free_device, const std::vector<BlockId>& free_host) {
    doubt_copies();
    groups().clear();
    unreported.clear();
    forced_.clear();
    memory.device.assign(free_device.begin(), free_device.end());
    memory.host.assign(free_host.begin(), free_host.end());
    reported = true;
  }

  const SchedulerOutput& schedule(Nanoseconds now = 0) {
    doubt_copies();
    end_expired(now);
    ++step_;
    age_line();
    first_in_rank = first_of_all();
    begin_shares();
    plan = {};
    memory.copies.clear();
    reported = swapped_for_room_ = false;
    kept_out_.clear();
    preempted_for.clear();
    for (const auto& [id, mode] : std::exchange(forced_, {})) {
      if (runs(id)) {
        move_out(id, mode);
      }
    }
    for (const bool decodes : {true, false}) {
      if (!decodes) {
        share_among_running(next_in_line().has_value());
      }
      for (const GroupId id : ids(GroupState::kRunning)) {
        if (runs(id) && budget() > 0 && decodes == groups().at(id).decodes()) {
          go_on(id);
        }
      }
    }
    share_among_line();
    while (budget() > 0 || config_.policy.by_priority) {
      const std::optional<GroupId> next = next_in_line();
      if (!next || ((budget() == 0 || !may_enter(*next, look_up(*next))) && !make_way_for(*next))) {
        break;
      }
      enter(*next, look_up(*next));
    }
    hand_out_rest();
    for (const GroupId id : in_line_) {
      ++groups().at(id).num_passed_over;
    }
    plan.ended = unreported;
    plan.copies = memory.copies;
    count_up();
    return plan;
  }

  // results: for each planned branch that has some, its scores and draws in order, nothing where it failed.
  std::vector<SequenceEvent> update(const Results& results) {
    std::vector<SequenceEvent> events = std::exchange(unreported, {});
    reported = true;
    std::int32_t first_result = 0;
    for (const ScheduledSequence& planned : plan.scheduled) {
      if (has(planned.group_id, planned.sequence_id)) {
        SlowGroup& group = groups().at(planned.group_id);
        SlowBranch& branch = group.branches.at(planned.sequence_id);
        for (std::int32_t i = 0; i < planned.num_tokens; ++i) {
          branch.unscored.erase(branch.computed);
          ++branch.computed;
          const bool again = branch.computed <= branch.most_computed;
          group.num_recomputed += again ? 1 : 0;
          stats.num_tokens_recomputed += again ? 1 : 0;
          branch.most_computed = std::max(branch.most_computed, branch.computed);
        }
        const bool has_results = planned.num_scores + planned.num_draws > 0;
        if (!has_results || !failed(results.at(planned.sequence_id))) {
          publish(group, planned.sequence_id);
        }
        memory.attach_children(group, planned.sequence_id);
        if (has_results) {
          hear(planned, first_result, results.at(planned.sequence_id), events);
        }
      }
      first_result += planned.num_scores + planned.num_draws;
    }
    return events;
  }

 private:
  void go_on(GroupId id) {
    const bool decodes = groups().at(id).decodes();
    if (decodes && (groups().at(id).size() > budget() || !make_room_per_branch(id))) {
      return;
    }
    std::int64_t part_left = part_;
    std::vector<SequenceId> branches;
    for (const auto& [branch, ignored] : groups().at(id).branches) {
      branches.push_back(branch);
    }
    for (const SequenceId branch : branches) {
      if (!runs(id)) {
        return;
      }
      const std::int64_t tokens = decodes ? 1 : chunk(id, branch, std::min(cut_left(), part_left));
      const std::int64_t most = decodes ? 1 : chunk(id, branch, kNoLimit);
      if (tokens > 0 && !make_room(id, branch, tokens)) {
        continue;
      }
      if (tokens > 0) {
        plan.scheduled.push_back(planned(id, branch, tokens));
      }
      const std::int64_t wanted = decodes ? 0 : prefill_tokens(groups().at(id), groups().at(id).branches.at(branch));
      if (is_cut(wanted, most)) {
        cut_.insert(branch);
        part_left -= tokens;
      }
      if (shares() && tokens < wanted) {
        behind_.insert(id);
      }
    }
  }

  // False: the branch has ended for it, or its group had to go itself.
  bool make_room(GroupId id, SequenceId branch, std::int64_t tokens) {
    while (true) {
      const std::vector<std::int64_t> lacking =
          memory.lacking(groups().at(id), groups().at(id).branches.at(branch), tokens);
      if (lacking.size() <= memory.device.size()) {
        memory.fill(groups().at(id).branches.at(branch), lacking);
        return true;
      }
      if (std::ssize(groups().at(id).held()) + std::ssize(lacking) > config_.num_blocks) {
        unreported.push_back({.group_id = id,
                              .sequence_id = branch,
                              .parent_id = branch,
                              .branch = groups().at(id).branches.at(branch).branch,
                              .finished = true,
                              .group_finished = groups().at(id).size() == 1,
                              .finish_reason = FinishReason::kLength});
        end(id, branch);
        return false;
      }
      if (ids(GroupState::kRunning).size() == 1 && release_oldest_pin()) {
        continue;  // pins keep nobody from running
      }
      if (!preempt_for(id)) {
        return false;
      }
    }
  }

  bool make_room_per_branch(GroupId id) {
    while (config_.policy.block_per_branch && ids(GroupState::kRunning).size() > 1 &&
           std::ssize(memory.device) < groups().at(id).size()) {
      if (!preempt_for(id)) {
        return false;
      }
    }
    return true;
  }

  // False: it was this group itself.
  bool preempt_for(GroupId id) {
    const GroupId victim = victim_for(id);
    broke_window = broke_window || is_kept(victim);
    preempt_for(id, victim);
    return victim != id;
  }

  void preempt_for(GroupId id, GroupId victim) {
    move_out(victim, config_.policy.preemption_mode);
    kept_out_.push_back(victim);
    preempted_for.emplace_back(victim, id);
    swapped_for_room_ = swapped_for_room_ || groups().at(victim).state == GroupState::kSwapped;
  }

  // The first in line has the worst preempted that run, if their priority is worse than its own, as many as it takes
  // for it to come in; and nobody, if it would not, or waits for a prefix. Tried out on a world of its own.
  bool make_way_for(GroupId id) {
    Matches found = look_up(id);
    if (!config_.policy.by_priority || computes_prefix_of(id, found)) {
      return false;
    }
    for (SlowMatch& match : found | std::views::values) {  // swapping victims may take the host's
      match.tokens = num_on_device(match);
      match.host_blocks.clear();
    }
    SlowScheduler trial = *this;
    std::vector<GroupId> victims;
    while (trial.may_be_preempted_for(id)) {
      victims.push_back(trial.ids(GroupState::kRunning).back());
      trial.preempt_for(id, victims.back());
      if (trial.has_place(id, found) && trial.whole_pool_holds(id)) {
        std::ranges::for_each(victims, [&](GroupId victim) { preempt_for(id, victim); });
        num_preempted_for_priority += std::ssize(victims);
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] bool may_be_preempted_for(GroupId id) const {
    const std::vector<GroupId> running = ids(GroupState::kRunning);
    return !running.empty() && !memory.groups.at(running.back()).aged &&
           memory.groups.at(running.back()).asked.priority > memory.groups.at(id).asked.priority;
  }

  [[nodiscard]] bool whole_pool_holds(GroupId id) const {
    return std::ssize(memory.groups.at(id).held()) + lacking_within(id, 0) <= config_.num_blocks;
  }

  void move_out(GroupId id, PreemptionMode mode) {
    SlowGroup& group = groups().at(id);
    std::erase_if(plan.scheduled, [&](const ScheduledSequence& planned) { return planned.group_id == id; });
    behind_.erase(id);
    for (SlowBranch& branch : group.branches | std::views::values) {
      memory.cut(group, branch.blocks, memory.blocks_for(branch.computed));
    }
    const bool holds_something = !group.held().empty();
    group.stakes = mode == PreemptionMode::kAuto ? stakes_of(group) : PreemptionStakes{};
    if (holds_something && swaps(group, mode) && memory.swap(group, GroupState::kSwapped)) {
      forecast_.see_swapped_out(std::exchange(group.stakes, {}));
      plan.swapped_out.push_back(id);
    } else {
      memory.forget(group);
    }
    plan.preempted.push_back(id);
    ++group.num_preemptions;
  }

  [[nodiscard]] std::optional<GroupId> next_in_line() const {
    const std::vector<GroupId> swapped = ids(GroupState::kSwapped);
    const std::vector<GroupId> waiting = ids(GroupState::kWaiting);
    if (swapped.empty() && waiting.empty()) {
      return std::nullopt;
    }
    if (!swapped.empty() &&
        (waiting.empty() || config_.policy.swapped_before_waiting || goes_before(swapped[0], waiting[0]))) {
      return swapped_for_room_ ? std::nullopt : std::optional(swapped[0]);
    }
    return std::ranges::count(kept_out_, waiting[0]) > 0 ? std::nullopt : std::optional(waiting[0]);
  }

  [[nodiscard]] bool may_enter(GroupId id, const Matches& found) const {
    return has_place(id, found) && (ids(GroupState::kRunning).empty() || !computes_prefix_of(id, found));
  }

  [[nodiscard]] bool has_place(GroupId id, const Matches& found) const {
    const SlowGroup& group = memory.groups.at(id);
    const std::vector<GroupId> running = ids(GroupState::kRunning);
    if (running.empty()) {
      return true;
    }
    const bool swapped = group.state == GroupState::kSwapped;
    std::int64_t wanted = static_cast<std::int64_t>(config_.policy.watermark * config_.num_blocks);
    wanted += swapped ? memory.missing_to_swap_in(group) : 0;
    const std::int64_t steps = steps_to_keep(id);
    const bool per_branch = swapped && config_.policy.block_per_branch && steps == 0;
    wanted += per_branch ? group.size() : lacking_within(id, steps) - num_in_use(found);
    wanted += reserve_within(id, steps);
    return num_running_branches() + group.counted() <= config_.max_num_seqs && fits_plan(id, found) &&
           wanted <= std::ssize(memory.device);
  }

  void enter(GroupId id, const Matches& found) {
    if (groups().at(id).state == GroupState::kSwapped) {
      while (ids(GroupState::kRunning).empty() &&
             memory.missing_to_swap_in(groups().at(id)) > std::ssize(memory.device) && release_oldest_pin()) {
      }
      const std::int64_t copied_before = groups().at(id).num_swapped_in;
      memory.swap(groups().at(id), GroupState::kRunning);
      forecast_.see_swapped_in(std::ssize(groups().at(id).held()), groups().at(id).num_swapped_in - copied_before);
      plan.swapped_in.push_back(id);
    }
    groups().at(id).state = GroupState::kRunning;
    in_line_.erase(id);
    groups().at(id).came_back_at = groups().at(id).num_preemptions > 0 ? step_ : 0;
    const auto [num_found, num_on_host] = adopt(id, found);
    forecast_.see_found(std::exchange(groups().at(id).stakes, {}), num_found - num_on_host, num_on_host);
    go_on(id);
  }

  std::vector<std::pair<GroupId, PreemptionMode>> forced_;
  std::vector<GroupId> kept_out_;
  bool swapped_for_room_ = false;
};

}  // namespace fastpaged::test
