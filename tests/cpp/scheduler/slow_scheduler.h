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
#include "scheduler/slow_queueing.h"

namespace fastpaged::test {

class SlowScheduler : public SlowQueueing {
 public:
  using SlowQueueing::SlowQueueing;

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
    cut_.clear();
    behind_.clear();
    cut_limit_ = shares() ? config_.policy.prefill_share : 1'000'000;
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
      if (!decodes && shares()) {
        const std::int64_t share = config_.policy.prefill_share;
        const std::int64_t left_to_line = std::min<std::int64_t>(config_.block_size, share / 2);
        cut_limit_ = std::max<std::int64_t>(1, std::min(share - left_to_line, budget() / 2));
      }
      for (const GroupId id : ids(GroupState::kRunning)) {
        if (runs(id) && budget() > 0 && decodes == groups().at(id).decodes()) {
          go_on(id);
        }
      }
    }
    cut_limit_ = shares() ? config_.policy.prefill_share : 1'000'000;
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
      if (!runs(id)) {
        return;
      }
      const std::int64_t tokens = decodes ? 1 : chunk(id, branch, cut_left());
      const std::int64_t most = decodes ? 1 : chunk(id, branch, 1'000'000);
      if (tokens > 0 && !make_room(id, branch, tokens)) {
        continue;
      }
      if (tokens > 0) {
        plan.scheduled.push_back(planned(id, branch, tokens));
      }
      const std::int64_t wanted = decodes ? 0 : prefill_tokens(groups().at(id), groups().at(id).branches.at(branch));
      if (is_cut(wanted, most)) {
        cut_.insert(branch);
      }
      if (shares() && tokens < wanted) {
        behind_.insert(id);
      }
    }
  }

  [[nodiscard]] ScheduledSequence planned(GroupId id, SequenceId branch_id, std::int64_t tokens) const {
    const SlowGroup& group = memory.groups.at(id);
    const SlowBranch& branch = group.branches.at(branch_id);
    const bool samples = branch.computed + tokens == std::ssize(branch.tokens);
    return {id,
            branch_id,
            static_cast<std::int32_t>(branch.computed),
            static_cast<std::int32_t>(tokens),
            samples,
            scores(branch, tokens),
            samples ? group.num_draws : 0};
  }

  // What is left goes to those who were to compute less than they could: of their share, or of the budget where nobody
  // decodes. For this nobody has to go.
  void hand_out_rest() {
    const bool decodes = std::ranges::any_of(
        plan.scheduled, [&](const ScheduledSequence& planned) { return groups().at(planned.group_id).decodes(); });
    std::vector<GroupId> behind(behind_.begin(), behind_.end());
    std::ranges::sort(behind, [&](GroupId a, GroupId b) { return goes_before(a, b); });
    for (const GroupId id : behind) {
      for (auto& [branch_id, branch] : groups().at(id).branches) {
        const std::vector<ScheduledSequence> before = plan.scheduled;
        const auto place = std::ranges::find(plan.scheduled, branch_id, &ScheduledSequence::sequence_id);
        const auto index = place - plan.scheduled.begin();
        const std::int64_t there = place == plan.scheduled.end() ? 0 : place->num_tokens;
        if (there > 0) {
          plan.scheduled.erase(place);
        }
        const std::int64_t tokens = chunk(id, branch_id, decodes ? cut_left() : budget());
        const std::vector<std::int64_t> lacking = memory.lacking(groups().at(id), branch, tokens);
        const std::int64_t most = chunk(id, branch_id, 1'000'000);
        plan.scheduled = before;
        if (tokens <= there || lacking.size() > memory.device.size()) {
          continue;
        }
        memory.fill(branch, lacking);
        if (there > 0) {
          plan.scheduled[index] = planned(id, branch_id, tokens);
        } else {
          plan.scheduled.push_back(planned(id, branch_id, tokens));
        }
        if (!is_cut(prefill_tokens(groups().at(id), branch), most)) {
          cut_.erase(branch_id);
        }
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
    for (SlowMatch& match : found | std::views::values) {
      match.tokens = num_on_device(match);  // swapping victims may take the host's
    }
    SlowScheduler trial = *this;
    std::vector<GroupId> victims;
    while (trial.may_be_preempted_for(id)) {
      victims.push_back(trial.ids(GroupState::kRunning).back());
      trial.preempt_for(id, victims.back());
      if (trial.may_enter(id, found) && trial.whole_pool_holds(id)) {
        std::ranges::for_each(victims, [&](GroupId victim) { preempt_for(id, victim); });
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

  // Whether what it must compute at once fits into the plan: if it decodes or no prompt is cut, everything; and if
  // prompts have shares, a token at least of its own.
  [[nodiscard]] bool fits_plan(GroupId id, const Matches& found) const {
    const SlowGroup& group = memory.groups.at(id);
    if (group.decodes() || !config_.policy.chunked_prefill) {
      std::int64_t tokens = group.decodes() ? group.size() : 0;
      for (const SlowBranch& branch : group.branches | std::views::values) {
        tokens += group.decodes() ? 0 : prefill_tokens(group, branch);
      }
      return tokens - num_found(found) <= budget();
    }
    if (!shares() || cut_left() > 0) {
      return budget() > 0;
    }
    for (const auto& [branch_id, branch] : group.branches) {
      const std::int64_t blocks = found.contains(branch_id) ? std::ssize(found.at(branch_id).blocks) : 0;
      const std::int64_t tokens = prefill_tokens(group, branch) - blocks * config_.block_size;
      const std::int64_t all = std::ssize(branch.tokens) - branch.computed;
      if (tokens > 0) {
        return tokens <= std::min<std::int64_t>({budget(), config_.policy.prefill_share, at_once(tokens)}) &&
               scores(branch, all) + 1 <= 1 + spare_rows();
      }
    }
    return true;
  }

  void move_out(GroupId id, PreemptionMode mode) {
    SlowGroup& group = groups().at(id);
    std::erase_if(plan.scheduled, [&](const ScheduledSequence& planned) { return planned.group_id == id; });
    behind_.erase(id);
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
    if (!swapped.empty() &&
        (waiting.empty() || config_.policy.swapped_before_waiting || goes_before(swapped[0], waiting[0]))) {
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
    const bool swapped = group.state == GroupState::kSwapped;
    std::int64_t wanted = static_cast<std::int64_t>(config_.policy.watermark * config_.num_blocks);
    wanted += swapped ? memory.missing_to_swap_in(group) : 0;
    const std::int64_t steps = steps_to_keep(id);
    const bool per_branch = swapped && config_.policy.block_per_branch && steps == 0;
    wanted += per_branch ? group.size() : lacking_within(id, steps) - num_in_use(found);
    wanted += reserve_within(id, steps);
    return num_running_branches() + group.counted() <= config_.max_num_seqs && fits_plan(id, found) &&
           wanted <= std::ssize(memory.device) && !computes_prefix_of(id, found);
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
    in_line_.erase(id);
    groups().at(id).came_back_at = groups().at(id).num_preemptions > 0 ? step_ : 0;
    adopt(id, found);
    go_on(id);
  }

  void end(GroupId id, SequenceId branch) {
    if (groups().at(id).size() == 1) {
      behind_.erase(id);
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
