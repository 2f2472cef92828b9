// What requests share in the slow scheduler: blocks of which the tokens are known, found by others and kept by pins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/slow_books.h"

namespace fastpaged::test {

class SlowSharing : public SlowBooks {
 public:
  explicit SlowSharing(const SchedulerConfig& config) : SlowBooks(config) { weigh_evictions(); }

  [[nodiscard]] bool may_pin(PinId id, const std::vector<TokenId>& tokens) const {
    std::int64_t num_blocks = std::ssize(tokens) / config_.block_size;
    const bool none = num_blocks == 0;
    for (const SlowPin& pin : memory.pins | std::views::values) {
      num_blocks += blocks_of(pin);
    }
    return !none && num_blocks <= config_.max_pinned_blocks && !memory.pins.contains(id);
  }

  // REQUIRES: may_pin.
  void pin(PinId id, const std::vector<TokenId>& tokens, const std::string& root) {
    SlowPin& pin = memory.pins[id];
    pin = {.tokens = tokens, .root = root, .blocks = memory.cached.match(tokens, std::ssize(tokens), root).blocks};
    for (const BlockId block : pin.blocks) {
      std::erase(memory.device, block);
      memory.cached.use({false, block});
    }
    use(id);
  }

  bool unpin(PinId id) {
    if (!memory.pins.contains(id)) {
      return false;
    }
    let_go(memory.pins.at(id));
    memory.pins.erase(id);
    std::erase(pins_by_use_, id);
    return true;
  }

  // Nothing can be found any more, nor will be what is computed by now.
  void reset_prefix_cache() {
    std::ranges::for_each(memory.pins | std::views::values, [&](SlowPin& pin) { let_go(pin); });
    for (const bool on_host : {false, true}) {
      std::ranges::stable_partition(on_host ? memory.host : memory.device,
                                    [&](BlockId block) { return memory.cached.contains({on_host, block}); });
    }
    memory.cached.entries.clear();
    for (SlowGroup& group : groups() | std::views::values) {
      for (SlowBranch& branch : group.branches | std::views::values) {
        branch.publishes = branch.publishes && branch.blocks.empty();
        branch.published = 0;
      }
    }
  }

 protected:
  using Matches = std::map<SequenceId, SlowMatch>;

  // What a waiting group would find: of each branch that waits for no other one.
  [[nodiscard]] Matches look_up(GroupId id) const {
    const SlowGroup& group = memory.groups.at(id);
    Matches found;
    for (const auto& [branch_id, branch] : group.branches) {
      if (looks(group) && group.state == GroupState::kWaiting && !branch.waits_for) {
        found[branch_id] = match_of(group, branch);
      }
    }
    return found;
  }

  [[nodiscard]] static std::int64_t num_found(const Matches& found) {
    std::int64_t tokens = 0;
    std::ranges::for_each(found | std::views::values, [&](const SlowMatch& match) { tokens += match.tokens; });
    return tokens;
  }

  // Tokens that are found on the device.
  [[nodiscard]] std::int64_t num_on_device(const SlowMatch& match) const {
    const bool all = match.host_blocks.empty() && !(match.beginning && match.beginning->on_host);
    return all ? match.tokens : std::ssize(match.blocks) * config_.block_size;
  }

  // Blocks that are found and not free: they cost nothing.
  [[nodiscard]] std::int64_t num_in_use(const Matches& found) const {
    std::int64_t count = 0;
    for (const SlowMatch& match : found | std::views::values) {
      count += std::ranges::count_if(match.blocks, [&](BlockId block) { return memory.holders(block) > 0; });
    }
    return count;
  }

  // Whether this plan computes the very block that the group will miss next, at the end of somebody's prompt; or
  // somebody will who goes before it and has but a share of this plan.
  [[nodiscard]] bool computes_prefix_of(GroupId id, const Matches& found) const {
    const SlowGroup& group = memory.groups.at(id);
    return std::ranges::any_of(found, [&](const auto& match) {
      const SlowBranch& branch = group.branches.at(match.first);
      const std::int64_t end = (match.second.num_blocks() + 1) * config_.block_size;
      const auto same_until_there = [&](const SlowGroup& other, const SlowBranch& computed) {
        return computed.publishes && other.asked.cache_root == group.asked.cache_root &&
               SlowPrefixes::first(computed.tokens, end) == SlowPrefixes::first(branch.tokens, end);
      };
      if (end > most_adopted(branch)) {
        return false;
      }
      for (const GroupId behind : behind_) {
        for (const SlowBranch& prompt : memory.groups.at(behind).branches | std::views::values) {
          if (goes_before(behind, id) && prompt.computed < end && end <= std::ssize(prompt.tokens) &&
              same_until_there(memory.groups.at(behind), prompt)) {
            return true;
          }
        }
      }
      return std::ranges::any_of(plan.scheduled, [&](const ScheduledSequence& planned) {
        const SlowGroup& other = memory.groups.at(planned.group_id);
        const SlowBranch& computed = other.branches.at(planned.sequence_id);
        const bool decodes = planned.num_tokens == 1 && std::ssize(computed.tokens) > computed.prompt;
        return planned.samples && !decodes && planned.first_token < end &&
               end <= planned.first_token + planned.num_tokens && same_until_there(other, computed);
      });
    });
  }

  // Returns how many tokens were found, and how many of them on the host.
  std::pair<std::int64_t, std::int64_t> adopt(GroupId id, const Matches& found) {
    SlowGroup& group = groups().at(id);
    std::int64_t num_tokens = 0;
    std::int64_t num_host_tokens = 0;
    for (const auto& [branch_id, match] : found) {
      SlowBranch& branch = group.branches.at(branch_id);
      if (match.tokens > 0) {
        // What a copy for the branch before has evicted is not there any more.
        const SlowMatch now = num_tokens == 0 ? match : match_of(group, branch);
        num_tokens += take(branch, now);
        num_host_tokens += std::max<std::int64_t>(0, branch.computed - num_on_device(now));
        offer(branch, group.asked.cache_root);
        memory.attach_children(group, branch_id);
      }
    }
    if (!group.was_let_in) {
      group.was_let_in = true;
      plan.cached.emplace_back(id, num_tokens);
      stats.num_prefix_tokens_looked_up += looks(group) ? group.branches.begin()->second.prompt : 0;
      stats.num_prefix_tokens_found += num_tokens;
      stats.num_host_prefix_tokens_found += num_host_tokens;
    }
    return {num_tokens, num_host_tokens};
  }

  // After a step: this branch, and if there is anything new, the others of its group.
  void publish(SlowGroup& group, SequenceId id) {
    if (config_.prefix_caching && publish_one(group, group.branches.at(id))) {
      for (SlowBranch& branch : group.branches | std::views::values) {
        publish_one(group, branch);
      }
    }
  }

  // What copying a block out and in costs, against computing it.
  void weigh_evictions() {
    const PreemptionCosts& costs = config_.costs;
    const double both = costs.seconds_per_block_out + costs.seconds_per_block_in;
    memory.copies_evicted = !(both > costs.seconds_per_token * config_.block_size);
  }

  void give_up_uncached_pins() {
    for (SlowPin& pin : memory.pins | std::views::values) {
      const auto lost = [&](BlockId block) { return !memory.cached.contains({false, block}); };
      while (std::ranges::any_of(pin.blocks, lost)) {
        const BlockId block = pin.blocks.back();
        pin.blocks.pop_back();
        memory.give_back(block);
      }
    }
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

  // False if no pin holds anything.
  bool release_oldest_pin() {
    for (const PinId id : pins_by_use_) {
      if (!memory.pins.at(id).blocks.empty()) {
        let_go(memory.pins.at(id));
        ++stats.num_pins_released;
        return true;
      }
    }
    return false;
  }

 private:
  [[nodiscard]] bool looks(const SlowGroup& group) const {
    return config_.prefix_caching && !group.asked.skip_prefix_cache;
  }

  [[nodiscard]] std::int64_t blocks_of(const SlowPin& pin) const { return std::ssize(pin.tokens) / config_.block_size; }

  // All but the last token, which is sampled from; and nothing that is still to be scored.
  [[nodiscard]] static std::int64_t most_adopted(const SlowBranch& branch) {
    return branch.unscored.empty() ? std::ssize(branch.tokens) - 1 : *branch.unscored.begin();
  }

  [[nodiscard]] SlowMatch match_of(const SlowGroup& group, const SlowBranch& branch) const {
    return memory.cached.match(branch.tokens, most_adopted(branch), group.asked.cache_root);
  }

  // Returns how many tokens the branch now has.
  std::int64_t take(SlowBranch& branch, const SlowMatch& match) {
    for (const auto& [pin_id, pin] : memory.pins) {
      const std::int64_t held = std::ssize(pin.blocks);
      if (held > 0 && held <= std::ssize(match.blocks) && pin.blocks.back() == match.blocks[held - 1]) {
        use(pin_id);
      }
    }
    for (const BlockId block : match.blocks) {
      std::erase(memory.device, block);
      memory.cached.use({false, block});
      branch.blocks.push_back(block);
    }
    // What is copied stays where it is meanwhile; its beginning only if there is room for all the rest beside it.
    const auto is_source = [&](BlockId block) {
      return match.beginning && *match.beginning == SlowPlace{false, block};
    };
    const std::int64_t num_others = std::ssize(memory.device) - std::ranges::count_if(memory.device, is_source);
    const bool has_room = match.beginning && num_others > std::ssize(match.host_blocks);
    bool source_was_free = false;
    if (has_room) {
      std::deque<BlockId>& free = match.beginning->on_host ? memory.host : memory.device;
      source_was_free = std::erase(free, match.beginning->block) > 0;
    }
    copy_in(branch, match.host_blocks);
    branch.published = std::ssize(branch.blocks);
    branch.computed = branch.published * config_.block_size;
    if (has_room) {
      copy_beginning(branch, *match.beginning, source_was_free);
      branch.computed = match.tokens;
    }
    branch.most_computed = std::max(branch.most_computed, branch.computed);
    return branch.computed;
  }

  // As far as there is room.
  void copy_in(SlowBranch& branch, const std::vector<BlockId>& host_blocks) {
    for (const BlockId block : host_blocks) {
      std::erase(memory.host, block);
    }
    for (const BlockId block : host_blocks) {
      if (!memory.device.empty()) {
        branch.blocks.push_back(memory.take_device());
        memory.copies.push_back({CopyKind::kSwapIn, block, branch.blocks.back(), 1});
        memory.move_in(block, branch.blocks.back());
        memory.cached.use({false, branch.blocks.back()});
        ++memory.num_promoted;
      }
      memory.give_back(block, true);
    }
  }

  void copy_beginning(SlowBranch& branch, SlowPlace source, bool source_was_free) {
    branch.blocks.push_back(memory.take_device());
    memory.copies.push_back(
        {source.on_host ? CopyKind::kSwapIn : CopyKind::kCopyOnWrite, source.block, branch.blocks.back(), 1});
    memory.cached.use(source);
    memory.num_promoted += source.on_host ? 1 : 0;
    ++stats.num_partial_prefix_blocks;
    if (source_was_free) {
      (source.on_host ? memory.host : memory.device).push_back(source.block);
    }
  }

  // Whether anything was new: a block that is cached from now on, or one that was cached already in another place, and
  // is taken from there.
  bool publish_one(const SlowGroup& group, SlowBranch& branch) {
    if (!branch.publishes) {
      return false;
    }
    const std::string& root = group.asked.cache_root;
    const std::int64_t num_full = branch.computed / config_.block_size;
    bool is_new = num_full > 0 && num_full != branch.published;
    for (std::int64_t i = 0; i < num_full; ++i) {
      const std::vector<TokenId> text = SlowPrefixes::first(branch.tokens, (i + 1) * config_.block_size);
      const std::optional<SlowPlace> found = memory.cached.find(root, text);
      const BlockId own = branch.blocks[i];
      if (!found) {
        memory.cached.add(own, root, text);
        is_new = true;
      } else if (found->on_host) {
        memory.cached.use(*found);
        memory.move_in(found->block, own);
        if (std::erase(memory.host, found->block) > 0) {
          memory.host.push_front(found->block);
        }
        is_new = true;
      } else if (found->block != own) {
        memory.cached.use(*found);
        branch.blocks[i] = found->block;
        std::erase(memory.device, found->block);
        memory.give_back(own);
        is_new = true;
      }
    }
    branch.published = num_full;
    if (is_new) {
      offer(branch, root);
    }
    return is_new;
  }

  // Pins that lack blocks which this branch has, all before them included, take them.
  void offer(const SlowBranch& branch, const std::string& root) {
    for (auto& [id, pin] : memory.pins) {
      const std::int64_t most = pin.root == root ? std::min(branch.published, blocks_of(pin)) : 0;
      std::int64_t common = 0;
      while (common < most && SlowPrefixes::first(branch.tokens, (common + 1) * config_.block_size) ==
                                  SlowPrefixes::first(pin.tokens, (common + 1) * config_.block_size)) {
        ++common;
      }
      if (common > std::ssize(pin.blocks)) {
        pin.blocks.assign(branch.blocks.begin(), branch.blocks.begin() + common);
        use(id);
      }
    }
  }

  void use(PinId id) {
    std::erase(pins_by_use_, id);
    pins_by_use_.push_back(id);
  }

  void let_go(SlowPin& pin) {
    while (!pin.blocks.empty()) {
      const BlockId block = pin.blocks.back();
      pin.blocks.pop_back();
      memory.give_back(block);
    }
  }

  std::vector<PinId> pins_by_use_;  // the one unused for longest first
};

}  // namespace fastpaged::test
