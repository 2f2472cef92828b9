// The slow scheduler's side of prompts that share a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <set>
#include <vector>

#include "scheduler/slow_queueing.h"

namespace fastpaged::test {

class SlowShares : public SlowQueueing {
 public:
  using SlowQueueing::SlowQueueing;

  std::int64_t num_handed_out = 0;  // prompts that got more in the end than their share was at first

 protected:
  static constexpr std::int64_t kNoLimit = 1'000'000;

  void begin_shares() {
    cut_.clear();
    behind_.clear();
    share_among_line();
    part_ = cut_limit_;
  }

  void share_among_running(bool somebody_is_next) {
    std::int64_t num_cut = 0;
    std::int64_t num_running = 0;
    for (const GroupId id : ids(GroupState::kRunning)) {
      const SlowGroup& group = groups().at(id);
      num_running += group.decodes() ? 0 : 1;
      num_cut += !group.decodes() && std::ranges::any_of(group.branches, [&](const auto& branch) {
        return is_cut(prefill_tokens(group, branch.second), chunk(id, branch.first, kNoLimit));
      });
    }
    if (!shares() || num_running == 0 || budget() == 0) {
      return;
    }
    const std::int64_t share = config_.policy.prefill_share;
    const std::int64_t half = budget() / 2;
    if (num_cut > 0) {
      part_ = somebody_is_next ? share / (num_cut + 1) : share / num_cut;
      part_ = std::max<std::int64_t>(1, std::min(part_, half / num_cut));
    }
    cut_limit_ =
        std::max<std::int64_t>(1, std::min(somebody_is_next ? share - std::min(part_, share / 2) : share, half));
  }

  void share_among_line() { cut_limit_ = shares() ? config_.policy.prefill_share : kNoLimit; }

  // What a branch computes, if prompts that have but a share may take cut_left tokens more.
  [[nodiscard]] std::int64_t chunk(GroupId id, SequenceId branch_id, std::int64_t cut_left) const {
    const SlowGroup& group = memory.groups.at(id);
    const SlowBranch& branch = group.branches.at(branch_id);
    const std::int64_t tokens = prefill_tokens(group, branch);
    if (!config_.policy.chunked_prefill) {
      return tokens <= budget() ? cut_to_rows(branch, tokens) : 0;
    }
    const std::int64_t most = cut_to_rows(branch, std::min({tokens, budget(), at_once(tokens)}));
    return is_cut(tokens, most) ? std::min(most, cut_left) : most;
  }

  // Whether that is counted as a share: there is more of the prompt than this step can do, or should.
  [[nodiscard]] bool is_cut(std::int64_t tokens, std::int64_t most) const {
    return shares() && tokens > 0 && (most < tokens || tokens > config_.policy.prefill_share);
  }

  [[nodiscard]] bool shares() const { return config_.policy.chunked_prefill && config_.policy.prefill_share > 0; }

  [[nodiscard]] std::int64_t at_once(std::int64_t tokens) const {
    const std::int64_t threshold = config_.policy.long_prefill_token_threshold;
    return threshold == 0 ? tokens : threshold;
  }

  [[nodiscard]] std::int64_t cut_left() const {
    std::int64_t left = cut_limit_;
    for (const ScheduledSequence& planned : plan.scheduled) {
      left -= cut_.contains(planned.sequence_id) ? planned.num_tokens : 0;
    }
    return left;
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
      const std::int64_t blocks = found.contains(branch_id) ? found.at(branch_id).num_blocks() : 0;
      const std::int64_t tokens = prefill_tokens(group, branch) - blocks * config_.block_size;
      const std::int64_t all = std::ssize(branch.tokens) - branch.computed;
      if (tokens > 0) {
        return tokens <= std::min<std::int64_t>({budget(), config_.policy.prefill_share, at_once(tokens)}) &&
               scores(branch, all) + 1 <= 1 + spare_rows();
      }
    }
    return true;
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
        const std::int64_t most = chunk(id, branch_id, kNoLimit);
        plan.scheduled = before;
        if (tokens <= there || lacking.size() > memory.device.size()) {
          continue;
        }
        memory.fill(branch, lacking);
        ++num_handed_out;
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

  std::int64_t cut_limit_ = 0;
  std::int64_t part_ = 0;     // what a group has of it before the rest is handed out
  std::set<SequenceId> cut_;  // of which the plan's tokens are a share
};

}  // namespace fastpaged::test
