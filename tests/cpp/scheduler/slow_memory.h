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
  explicit SlowMemory(const SchedulerConfig& config)
      : cached(config.block_size),
        block_size_(config.block_size),
        host_tier_(config.prefix_caching && config.host_prefix_tier) {
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
  std::vector<BlockCopy> copies;           // block by block
  std::map<BlockId, std::int64_t> births;  // of what host blocks were given to hold, as far as that was cached
  bool copies_evicted = true;              // to the host
  std::int64_t num_evicted = 0;
  std::int64_t num_host_evicted = 0;
  std::int64_t num_demoted = 0;
  std::int64_t num_promoted = 0;
  std::int64_t num_taken_as_copies = 0;  // cached on the host without being copied there
  std::int64_t num_shared_again = 0;     // branches of recomputed trees that got their first blocks from another

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
    std::deque<BlockId>& free = on_host ? host : device;
    cached.contains({on_host, block}) ? free.push_back(block) : free.push_front(block);
  }

  // What nobody but this branch holds is not to be found, nor what comes after it.
  void forget_own(const SlowBranch& branch) {
    const auto is_own = [&](BlockId block) { return cached.contains({false, block}) && holders(block) == 1; };
    const auto first = std::ranges::find_if(branch.blocks, is_own);
    if (first != branch.blocks.end()) {
      forget_cached({false, *first});
    }
  }

  // It, and what comes after it. What is free of that is the next to be taken, in the order it is in.
  void forget_cached(SlowPlace place) {
    const std::vector<SlowPlace> gone = cached.from(place);
    std::ranges::for_each(gone, [&](SlowPlace each) { cached.erase(each); });
    const auto is_gone = [&](bool on_host) {
      return [&gone, on_host](BlockId block) { return std::ranges::count(gone, SlowPlace{on_host, block}) > 0; };
    };
    std::ranges::stable_partition(device, is_gone(false));
    std::ranges::stable_partition(host, is_gone(true));
  }

  // These copies may not have been run: nothing is to be found where they write.
  void forget_written(const std::vector<BlockCopy>& lost) {
    std::set<SlowPlace> places;
    for (const BlockCopy& copy : lost) {
      places.insert({copy.kind == CopyKind::kSwapOut, copy.destination});
    }
    std::set<SlowPlace> gone;
    for (const SlowPlace place : places) {
      for (const SlowPlace after : cached.contains(place) ? cached.from(place) : std::vector<SlowPlace>{}) {
        gone.insert(after);
      }
    }
    std::ranges::for_each(gone, [&](SlowPlace each) { cached.erase(each); });
    std::ranges::stable_partition(device, [&](BlockId block) { return gone.contains({false, block}); });
    std::ranges::stable_partition(host, [&](BlockId block) { return gone.contains({true, block}); });
  }

  // A block with nothing in it: what was cached there goes to the host or is forgotten. REQUIRES: one is free.
  BlockId take_device() {
    const BlockId block = take(device);
    if (cached.contains({false, block})) {
      const std::vector<SlowPlace> from = cached.from({false, block});
      REQUIRE(std::ranges::count(from, false, &SlowPlace::on_host) == 1);  // what comes after it is evicted before it
      ++num_evicted;
      if (!demote(block)) {
        forget_cached({false, block});
      }
    }
    return block;
  }

  BlockId take_host() {
    const BlockId block = take(host);
    births.erase(block);
    if (cached.contains({true, block})) {
      ++num_host_evicted;
      forget_cached({true, block});
    }
    return block;
  }

  // A block that holds the same in the other tier: a cached one of the device, or one of the host that some table
  // lists.
  [[nodiscard]] std::optional<BlockId> copy_of(BlockId block, bool on_host) const {
    for (const auto& [place, birth] : births) {
      for (const CachedText& entry : cached.entries) {
        const bool same = entry.birth == birth && !entry.place.on_host && holders(place, true) > 0;
        if (same && (on_host ? entry.place.block : place) == block) {
          return on_host ? place : entry.place.block;
        }
      }
    }
    return std::nullopt;
  }

  // From the host, where the block goes on holding the same for whoever else has it.
  void move_in(BlockId from, BlockId to) {
    births[from] = cached.at({true, from}).birth;
    cached.move({true, from}, {false, to});
  }

  // Free device blocks that a swapped group needs to come back.
  [[nodiscard]] std::int64_t missing_to_swap_in(const SlowGroup& group) const {
    return std::ranges::count_if(group.held(), [&](BlockId block) {
      const std::optional<BlockId> copy = copy_of(block, false);
      return !copy || holders(*copy) == 0;
    });
  }

  // To the host, or back: each block once, and not what is there already. False if there is no room.
  bool swap(SlowGroup& group, GroupState to) {
    const bool out = to == GroupState::kSwapped;
    std::map<BlockId, BlockId> moved;
    for (const BlockId block : group.held()) {
      if (const std::optional<BlockId> copy = copy_of(block, out)) {
        moved[block] = *copy;
      }
    }
    const std::int64_t num_new = std::ssize(group.held()) - std::ssize(moved);
    if (out ? num_new > std::ssize(host) : missing_to_swap_in(group) > std::ssize(device)) {
      return false;
    }
    for (const auto& [block, copy] : moved) {
      std::erase_if(device, [&, kept = copy](BlockId free) { return !out && free == kept; });
    }
    std::map<SequenceId, std::vector<BlockId>> tables;
    for (const auto& [id, branch] : group.branches) {
      for (const BlockId block : branch.blocks) {
        if (!moved.contains(block)) {
          moved[block] = out ? swap_out(block) : swap_in(block);
          ++(out ? group.num_swapped_out : group.num_swapped_in);
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

  BlockId swap_out(BlockId block) {
    const BlockId place = take_host();
    copies.push_back({CopyKind::kSwapOut, block, place, 1});
    if (host_tier_ && cached.contains({false, block})) {
      births[place] = cached.at({false, block}).birth;
    }
    return place;
  }

  BlockId swap_in(BlockId block) {
    const BlockId place = take_device();
    copies.push_back({CopyKind::kSwapIn, block, place, 1});
    if (cached.contains({true, block}) && cached.comes_after_device_blocks({true, block})) {
      move_in(block, place);
    }
    return place;
  }

  bool demote(BlockId block) {
    if (!host_tier_) {
      return false;
    }
    if (const std::optional<BlockId> copy = copy_of(block, true)) {
      cached.move({false, block}, {true, *copy});
      ++num_taken_as_copies;
      return true;
    }
    if (!copies_evicted || host.empty()) {
      return false;
    }
    const BlockId place = take_host();
    copies.push_back({CopyKind::kSwapOut, block, place, 1});
    ++num_demoted;
    cached.move({false, block}, {true, place});
    host.push_back(place);
    return true;
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
  bool host_tier_;
};

}  // namespace fastpaged::test
