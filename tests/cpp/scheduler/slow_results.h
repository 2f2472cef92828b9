// What the slow scheduler makes of a step's results, and says of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "scheduler/slow_shares.h"

namespace fastpaged::test {

class SlowResults : public SlowShares {
 public:
  using SlowShares::SlowShares;

  // Of each planned branch that has some: its scores and draws in order, nothing where it failed.
  using Results = std::map<SequenceId, std::vector<std::optional<TokenId>>>;

 protected:
  [[nodiscard]] static bool failed(const std::vector<std::optional<TokenId>>& results) {
    return !std::ranges::all_of(results, [](const auto& result) { return result.has_value(); });
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

  SequenceId next_id_ = 0;
};

}  // namespace fastpaged::test
