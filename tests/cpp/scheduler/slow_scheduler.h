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
#include "scheduler/slow_windows.h"

namespace fastpaged::test {

class SlowScheduler : public SlowWindows {
 public:
  using SlowWindows::SlowWindows;

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

  const SchedulerOutput& schedule() {
    doubt_copies();
    ++step_;
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
      for (const GroupId id : ids(GroupState::kRunning)) {
        if (runs(id) && budget() > 0 && decodes == groups().at(id).decodes()) {
          go_on(id);
        }
      }
    }
    while (budget() > 0) {
      const std::optional<GroupId> next = next_in_line();
      const Matches found = next ? look_up(*next) : Matches{};
      if (!next || !may_enter(*next, found)) {
        break;
      }
      enter(*next, found);
    }
    plan.ended = unreported;
    plan.copies = memory.copies;
    count_up();
    return plan;
  }

  // results: for each planned branch that has some, its scores and draws in order, nothing where it failed.
  using Results = std::map<SequenceId, std::vector<std::optional<TokenId>>>;
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
  [[nodiscard]] static bool failed(const std::vector<std::optional<TokenId>>& results) {
    return !std::ranges::all_of(results, [](const auto& result) { return result.has_value(); });
  }

  void go_on(GroupId id) {
    const bool decodes = groups().at(id).decodes();
    if (decodes && (groups().at(id).size() > budget() || !make_room_per_branch(id))) {
      return;
    }
    std::vector<SequenceId> branches;
    for (const auto& [branch, ignored] : groups().at(id).branches) {
      branches.push_back(branch);
    }
    for (const SequenceId branch : branches) {
      const std::int64_t tokens = !runs(id) ? 0 : decodes ? 1 : chunk(id, branch);
      if (tokens > 0 && make_room(id, branch, tokens)) {
        const SlowBranch& there = groups().at(id).branches.at(branch);
        const bool samples = there.computed + tokens == std::ssize(there.tokens);
        plan.scheduled.push_back({id, branch, static_cast<std::int32_t>(there.computed),
                                  static_cast<std::int32_t>(tokens), samples, scores(there, tokens),
                                  samples ? groups().at(id).num_draws : 0});
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
    move_out(victim, config_.policy.preemption_mode);
    kept_out_.push_back(victim);
    preempted_for.emplace_back(victim, id);
    swapped_for_room_ = swapped_for_room_ || groups().at(victim).state == GroupState::kSwapped;
    return victim != id;
  }

  void move_out(GroupId id, PreemptionMode mode) {
    SlowGroup& group = groups().at(id);
    std::erase_if(plan.scheduled, [&](const ScheduledSequence& planned) { return planned.group_id == id; });
    for (SlowBranch& branch : group.branches | std::views::values) {
      memory.cut(group, branch.blocks, memory.blocks_for(branch.computed));
    }
    const bool holds_something = !group.held().empty();
    if (holds_something && swaps(group, mode) && memory.swap(group, GroupState::kSwapped)) {
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
    if (!swapped.empty() && (waiting.empty() || config_.policy.swapped_before_waiting || swapped[0] < waiting[0])) {
      return swapped_for_room_ ? std::nullopt : std::optional(swapped[0]);
    }
    return std::ranges::count(kept_out_, waiting[0]) > 0 ? std::nullopt : std::optional(waiting[0]);
  }

  [[nodiscard]] bool may_enter(GroupId id, const Matches& found) const {
    const SlowGroup& group = memory.groups.at(id);
    const std::vector<GroupId> running = ids(GroupState::kRunning);
    if (running.empty()) {
      return true;
    }
    std::int64_t tokens = group.decodes() ? group.size() : 0;
    for (const SlowBranch& branch : group.branches | std::views::values) {
      tokens += group.decodes() ? 0 : prefill_tokens(group, branch);
    }
    tokens -= num_found(found);
    const bool at_once = group.decodes() || !config_.policy.chunked_prefill;
    const bool swapped = group.state == GroupState::kSwapped;
    std::int64_t wanted = static_cast<std::int64_t>(config_.policy.watermark * config_.num_blocks);
    wanted += swapped ? memory.missing_to_swap_in(group) : 0;
    const std::int64_t steps = steps_to_keep(id);
    const bool per_branch = swapped && config_.policy.block_per_branch && steps == 0;
    wanted += per_branch ? group.size() : lacking_within(id, steps) - num_in_use(found);
    wanted += reserve_within(id, steps);
    return num_running_branches() + group.counted() <= config_.max_num_seqs && (!at_once || tokens <= budget()) &&
           wanted <= std::ssize(memory.device) && !computes_prefix_of(group, found);
  }

  void enter(GroupId id, const Matches& found) {
    if (groups().at(id).state == GroupState::kSwapped) {
      while (ids(GroupState::kRunning).empty() &&
             memory.missing_to_swap_in(groups().at(id)) > std::ssize(memory.device) && release_oldest_pin()) {
      }
      memory.swap(groups().at(id), GroupState::kRunning);
      plan.swapped_in.push_back(id);
    }
    groups().at(id).state = GroupState::kRunning;
    groups().at(id).came_back_at = groups().at(id).num_preemptions > 0 ? step_ : 0;
    adopt(id, found);
    go_on(id);
  }

  // Nobody knows whether the copies of a plan that was not updated were run: of what they wrote nothing is believed.
  void doubt_copies() {
    if (reported) {
      return;
    }
    const std::vector<BlockCopy> lost = std::exchange(plan.copies, {});
    memory.forget_written(lost);
    give_up_uncached_pins();
    std::vector<GroupId> doubtful;
    for (const auto& [id, group] : groups()) {
      const bool on_host = group.state == GroupState::kSwapped;
      for (const SlowBranch& branch : group.branches | std::views::values) {
        for (std::int64_t token = 0; token < branch.computed; ++token) {
          const BlockId block = branch.blocks[token / config_.block_size];
          if (std::ranges::any_of(lost, [&](const BlockCopy& copy) {
                return (copy.kind == CopyKind::kSwapOut) == on_host && copy.destination == block;
              })) {
            doubtful.push_back(id);
          }
        }
      }
    }
    doubtful.erase(std::ranges::unique(doubtful).begin(), doubtful.end());
    std::ranges::for_each(doubtful, [&](GroupId id) { memory.forget(groups().at(id)); });
  }

  void end(GroupId id, SequenceId branch) {
    if (groups().at(id).size() == 1) {
      memory.erase_group(id);
    } else {
      memory.erase_branch(groups().at(id), branch);
    }
  }

  // An event for each draw, or one for scores alone. The first is the branch's own; every further one has a new id, and
  // goes on, if it does, with what the branch had before.
  void hear(const ScheduledSequence& planned, std::int32_t first_result,
            const std::vector<std::optional<TokenId>>& results, std::vector<SequenceEvent>& events) {
    SlowGroup& group = groups().at(planned.group_id);
    const SlowBranch before = group.branches.at(planned.sequence_id);
    const auto scores_end = results.begin() + planned.num_scores;
    const bool scored = std::all_of(results.begin(), scores_end, [](const auto& score) { return score.has_value(); });
    std::vector<SequenceId> ended;
    for (std::int32_t i = 0; i < std::max(planned.num_draws, 1); ++i) {
      SequenceEvent& event = events.emplace_back();
      event.group_id = planned.group_id;
      event.sequence_id = i == 0 ? planned.sequence_id : next_id_++;
      event.parent_id = planned.sequence_id;
      event.branch = i == 0 ? before.branch : i;
      event.score_row = first_result;
      event.num_scores = scored && i == 0 ? planned.num_scores : 0;
      event.sample_row = first_result + planned.num_scores + i;
      SlowBranch now = before;
      now.branch = event.branch;
      if (i > 0) {
        now.blocks.resize(memory.blocks_for(now.computed));
        now.most_computed = now.computed;
      }
      if (!scored || (planned.samples && !results[planned.num_scores + i])) {
        event.finished = true;
        event.finish_reason = FinishReason::kError;
      } else if (planned.samples) {
        add_token(group, now, *results[planned.num_scores + i], event);
      }
      group.branches[event.sequence_id] = now;
      if (event.finished) {
        ended.push_back(event.sequence_id);
      }
    }
    if (planned.num_draws > 1) {
      group.num_branches = planned.num_draws;
      group.num_draws = 1;
    }
    for (const SequenceId id : ended | std::views::reverse) {
      events.back().group_finished = group.size() == 1;
      if (id == planned.sequence_id && failed(results)) {
        memory.forget_own(group.branches.at(id));
      }
      end(planned.group_id, id);
    }
  }

  void add_token(const SlowGroup& group, SlowBranch& branch, TokenId token, SequenceEvent& event) const {
    branch.tokens.push_back(token);
    event.has_token = true;
    event.token_id = token;
    const StopConditions& stop = group.asked.stop;
    const std::int64_t length = std::ssize(branch.tokens);
    const bool stops = std::ranges::count(stop.stop_token_ids, token) > 0;
    event.finished = stops || length - branch.prompt == stop.max_tokens || length == config_.max_model_len;
    event.finish_reason = stops ? FinishReason::kStop : FinishReason::kLength;
  }

  void count_up() {
    for (const ScheduledSequence& planned : plan.scheduled) {
      plan.num_tokens += planned.num_tokens;
      plan.num_samples += planned.samples ? 1 : 0;
      plan.num_rows += planned.num_scores + (planned.samples ? 1 : 0);
      plan.num_results += planned.num_scores + planned.num_draws;
    }
    for (const BlockCopy& copy : plan.copies) {
      ++(copy.kind == CopyKind::kSwapOut  ? stats.num_blocks_swapped_out
         : copy.kind == CopyKind::kSwapIn ? stats.num_blocks_swapped_in
                                          : stats.num_blocks_copied_on_write);
    }
    stats.num_blocks_swapped_out -=
        memory.num_demoted - std::exchange(stats.num_prefix_blocks_demoted, memory.num_demoted);
    stats.num_blocks_swapped_in -=
        memory.num_promoted - std::exchange(stats.num_prefix_blocks_promoted, memory.num_promoted);
    stats.num_host_cached_blocks_evicted = memory.num_host_evicted;
    stats.num_preemptions += std::ssize(plan.preempted);
    stats.num_groups_swapped_out += std::ssize(plan.swapped_out);
    stats.num_groups_swapped_in += std::ssize(plan.swapped_in);
    stats.num_cached_blocks_evicted = memory.num_evicted;
  }

  std::vector<std::pair<GroupId, PreemptionMode>> forced_;
  std::vector<GroupId> kept_out_;
  bool swapped_for_room_ = false;
  SequenceId next_id_ = 0;
};

}  // namespace fastpaged::test
