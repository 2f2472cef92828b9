// The memory half of the slow scheduler: requests, branches, pins and blocks in maps. There are no reference counts: a
// block is shared or held if tables list it, and whoever asks looks through them all.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "scheduler/slow_prefixes.h"

namespace fastpaged::test {

struct SlowBranch {
  std::int32_t branch = 0;  // which of its group's
  std::int64_t prompt = 0;
  std::vector<TokenId> tokens;
  std::int64_t computed = 0;
  std::int64_t most_computed = 0;
  std::set<std::int64_t> unscored;  // positions of the prompt whose logits are still wanted
  std::vector<BlockId> blocks;      // of the device; of the host while the group is swapped
  // While a fork tree is recomputed: which branch computes this one's first tokens, and how many.
  std::optional<SequenceId> waits_for;
  std::int64_t common = 0;
  std::int64_t published = 0;  // blocks that it has seen to be cached
  bool publishes = true;       // not what was there when the cache was reset
};

struct SlowPin {
  std::vector<TokenId> tokens;
  std::string root;
  std::vector<BlockId> blocks;  // the first ones of its prefix, as many as there were
};

struct SlowGroup {
  NewRequest asked;
  GroupState state = GroupState::kWaiting;
  std::map<SequenceId, SlowBranch> branches;  // ids grow: in order of creation
  std::int32_t num_branches = 1;              // there ever were
  std::int32_t num_draws = 1;                 // from the row to sample from: several until the samples have parted
  std::int64_t num_preemptions = 0;
  PreemptionStakes stakes;  // when it was preempted by cost
  std::int64_t num_recomputed = 0;
  std::int64_t num_swapped_out = 0;
  std::int64_t num_swapped_in = 0;
  std::int64_t came_back_at = 0;  // the step that let it in after a preemption; 0: it was let in for the first time
  bool was_let_in = false;        // once at least
  bool aged = false;
  std::int64_t num_passed_over = 0;  // plans made while it was in line
  std::int64_t rebuild_limit = 0;    // most blocks it held since it last decoded, when it was forgotten

  [[nodiscard]] std::int64_t size() const { return std::ssize(branches); }

  // Branches, those that are still to come too.
  [[nodiscard]] std::int64_t counted() const { return std::max<std::int64_t>(size(), num_draws); }

  [[nodiscard]] bool decodes() const {
    return std::ranges::all_of(branches | std::views::values,
                               [](const SlowBranch& b) { return std::ssize(b.tokens) - b.computed == 1; });
  }

  [[nodiscard]] std::set<BlockId> held() const {
    std::set<BlockId> held;
    for (const auto& [id, branch] : branches) {
      held.insert(branch.blocks.begin(), branch.blocks.end());
    }
    return held;
  }
};

class SlowMemory {
 public:
  explicit SlowMemory(const SchedulerConfig& config) : cached(config.block_size), block_size_(config.block_size) {
    for (BlockId block = 0; block < config.num_blocks; ++block) {
      device.push_back(block);
    }
    for (BlockId block = 0; block < config.num_host_blocks; ++block) {
      host.push_back(block);
    }
  }

  // REQUIRES of the caller: ids of groups grow with arrival, so that the map is in order of arrival.
  std::map<GroupId, SlowGroup> groups;
  std::map<PinId, SlowPin> pins;
  // Free blocks, the next to be taken first: those that hold nothing, then cached ones. The former come back to the
  // front, the latter to the back.
  std::deque<BlockId> device;
  std::deque<BlockId> host;
  SlowPrefixes cached;
  std::vector<BlockCopy> copies;  // block by block
  std::int64_t num_evicted = 0;
  std::int64_t num_shared_again = 0;  // branches of recomputed trees that got their first blocks from another

  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return tokens / block_size_ + (tokens % block_size_ == 0 ? 0 : 1);
  }

  // Tables that list this block of one tier.
  [[nodiscard]] std::int64_t holders(BlockId block, bool on_host = false) const {
    std::int64_t holders = 0;
    for (const SlowGroup& group : groups | std::views::values) {
      for (const SlowBranch& branch : group.branches | std::views::values) {
        const bool there = (group.state == GroupState::kSwapped) == on_host;
        holders += there ? std::ranges::count(branch.blocks, block) : 0;
      }
    }
    for (const SlowPin& pin : pins | std::views::values) {
      holders += on_host ? 0 : std::ranges::count(pin.blocks, block);
    }
    return holders;
  }

  // Entries of the branch's table that must be new before these tokens can be written: absent, or another's too.
  [[nodiscard]] std::vector<std::int64_t> lacking(const SlowGroup& group, const SlowBranch& branch,
                                                  std::int64_t tokens) const {
    const bool on_host = group.state == GroupState::kSwapped;
    std::vector<std::int64_t> lacking;
    for (std::int64_t i = branch.computed / block_size_; i < blocks_for(branch.computed + tokens); ++i) {
      if (i >= std::ssize(branch.blocks) || holders(branch.blocks[i], on_host) > 1) {
        lacking.push_back(i);
      }
    }
    return lacking;
  }

  // REQUIRES: as many blocks are free.
  void fill(SlowBranch& branch, const std::vector<std::int64_t>& entries) {
    std::vector<BlockId>& blocks = branch.blocks;
    const auto is_new = [&](std::int64_t entry) { return entry >= std::ssize(blocks); };
    const auto first_new = std::ranges::find_if(entries, is_new);
    blocks.resize(blocks.size() + (entries.end() - first_new));
    for (auto entry = first_new; entry != entries.end(); ++entry) {
      blocks[*entry] = take_device();
    }
    for (auto entry = entries.begin(); entry != first_new; ++entry) {
      const BlockId copy = take_device();
      copies.push_back({CopyKind::kCopyOnWrite, blocks[*entry], copy, 1});
      blocks[*entry] = copy;
    }
  }

  void cut(const SlowGroup& group, std::vector<BlockId>& blocks, std::int64_t num_blocks) {
    while (std::ssize(blocks) > num_blocks) {
      const BlockId block = blocks.back();
      blocks.pop_back();
      give_back(block, group.state == GroupState::kSwapped);
    }
  }

  // A table has been rid of this block.
  void give_back(BlockId block, bool on_host = false) {
    if (holders(block, on_host) > 0) {
      return;
    }
    if (!on_host && cached.contains(block)) {
      device.push_back(block);
    } else {
      (on_host ? host : device).push_front(block);
    }
  }

  // What nobody but this branch holds is not to be found, nor what comes after it.
  void forget_own(const SlowBranch& branch) {
    const auto is_own = [&](BlockId block) { return cached.contains(block) && holders(block) == 1; };
    const auto first = std::ranges::find_if(branch.blocks, is_own);
    if (first == branch.blocks.end()) {
      return;
    }
    const std::vector<BlockId> gone = cached.from(*first);
    std::ranges::for_each(gone, [&](BlockId block) { cached.erase(block); });
    std::ranges::stable_partition(device, [&](BlockId block) { return std::ranges::count(gone, block) > 0; });
  }

  // A block with nothing in it. REQUIRES: one is free.
  BlockId take_device() {
    const BlockId block = take(device);
    if (cached.contains(block)) {
      REQUIRE_FALSE(cached.goes_on(block));  // what comes after it is evicted before it
      cached.erase(block);
      ++num_evicted;
    }
    return block;
  }

  // To the host, or back: each block once. False if there is no room.
  bool swap(SlowGroup& group, GroupState to) {
    std::deque<BlockId>& there = to == GroupState::kSwapped ? host : device;
    if (group.held().size() > there.size()) {
      return false;
    }
    std::map<BlockId, BlockId> moved;
    std::map<SequenceId, std::vector<BlockId>> tables;
    for (const auto& [id, branch] : group.branches) {
      for (const BlockId block : branch.blocks) {
        if (!moved.contains(block)) {
          moved[block] = to == GroupState::kSwapped ? take(host) : take_device();
          const CopyKind kind = to == GroupState::kSwapped ? CopyKind::kSwapOut : CopyKind::kSwapIn;
          copies.push_back({kind, block, moved[block], 1});
        }
        tables[id].push_back(moved[block]);
      }
    }
    for (SlowBranch& branch : group.branches | std::views::values | std::views::reverse) {
      cut(group, branch.blocks, 0);
    }
    for (auto& [id, branch] : group.branches) {
      branch.blocks = tables[id];
    }
    group.state = to;
    return true;
  }

  // To be recomputed: the blocks go, who shared how much with whom is remembered.
  void forget(SlowGroup& group) {
    group.rebuild_limit = std::max(group.decodes() ? 0 : group.rebuild_limit, std::ssize(group.held()));
    for (auto& [id, branch] : group.branches) {
      std::int64_t most = 0;
      for (const auto& [earlier, other] : group.branches) {
        const std::int64_t common = earlier < id ? common_tokens(branch, other) : 0;
        if (common > most) {
          most = common;
          branch.waits_for = earlier;
          branch.common = common;
        }
      }
    }
    for (SlowBranch& branch : group.branches | std::views::values | std::views::reverse) {
      cut(group, branch.blocks, 0);
      branch.computed = 0;
      branch.published = 0;
      branch.publishes = true;
    }
    group.state = GroupState::kWaiting;
  }

  // Whoever waited for what this branch has computed by now shares it.
  void attach_children(SlowGroup& group, SequenceId parent) {
    for (SlowBranch& child : group.branches | std::views::values) {
      if (child.waits_for == parent && child.common <= group.branches.at(parent).computed) {
        share(group.branches.at(parent), child, child.common);
      }
    }
  }

  // Of those who waited for this branch, who shares most with it inherits its place and its blocks; the others wait for
  // the heir.
  void erase_branch(SlowGroup& group, SequenceId gone) {
    const SlowBranch& branch = group.branches.at(gone);
    std::map<SequenceId, std::int64_t> children;
    for (const auto& [id, child] : group.branches) {
      if (child.waits_for == gone) {
        children[id] = child.common;
      }
    }
    if (!children.empty()) {
      const auto shares_less = [](const auto& a, const auto& b) { return a.second < b.second; };
      const SequenceId heir = std::ranges::max_element(children, shares_less)->first;  // the first of the best
      for (const auto& [id, common] : children) {
        group.branches.at(id).waits_for = heir;
      }
      group.branches.at(heir).waits_for = branch.waits_for;
      group.branches.at(heir).common = branch.common;
      if (!branch.waits_for) {
        share(branch, group.branches.at(heir), branch.computed);
      }
    }
    cut(group, group.branches.at(gone).blocks, 0);
    group.branches.erase(gone);
  }

  void erase_group(GroupId id) {
    for (SlowBranch& branch : groups.at(id).branches | std::views::values) {
      cut(groups.at(id), branch.blocks, 0);
    }
    groups.erase(id);
  }

 private:
  static BlockId take(std::deque<BlockId>& free) {
    const BlockId block = free.at(0);
    free.pop_front();
    return block;
  }

  void share(const SlowBranch& parent, SlowBranch& child, std::int64_t tokens) {
    ++num_shared_again;
    child.blocks.assign(parent.blocks.begin(), parent.blocks.begin() + blocks_for(tokens));
    child.computed = tokens;
    child.published = parent.published;
    child.publishes = parent.publishes;
    child.waits_for.reset();
  }

  [[nodiscard]] std::int64_t common_tokens(const SlowBranch& a, const SlowBranch& b) const {
    std::int64_t common = 0;
    while (common < std::min(a.computed, b.computed) &&
           a.blocks[common / block_size_] == b.blocks[common / block_size_]) {
      ++common;
    }
    return common;
  }

  std::int64_t block_size_;
};

}  // namespace fastpaged::test
