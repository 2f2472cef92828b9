// What a Scheduler's tables say of the KV memory, slot by slot.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "fastpaged/kv_cache/content_hash.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

// Entry `index` of a table with so many computed tokens holds this many of them.
std::int32_t tokens_in_block(std::int64_t num_computed, std::int64_t index, std::int32_t block_size) {
  const std::int64_t beyond = num_computed - index * block_size;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(beyond, 0, block_size));
}

// What is there to be counted of the blocks' own figures.
SlotSplit split_of(const TierUse& use, std::int32_t block_size) {
  SlotSplit split;
  split.num_slots = std::ssize(use.blocks) * block_size;
  for (const BlockUse& block : use.blocks) {
    if (block.quarantined) {
      split.quarantined += block_size;
    } else if (block.num_holders == 0) {
      split.free += block_size;
      split.cached_free += block.cached ? block_size : 0;
    } else {
      split.token_states += block.num_tokens;
      split.reserved += block.num_reserved;
      split.internal_waste += block_size - block.num_tokens - block.num_reserved;
      split.saved += std::int64_t{block_size} * (block.num_holders - 1);
      split.pinned += block.pinned ? block_size : 0;
    }
  }
  return split;
}

// Content hashes of cached blocks, each computed once, from the root on.
class ContentHashes {
 public:
  explicit ContentHashes(const PrefixCache& cache) : cache_(&cache) {}

  std::uint64_t of(BlockId block) {
    std::vector<BlockId> path;  // from the block up to what is known
    PrefixCache::Node node = block;
    for (; node >= 0 && known(node) == 0; node = cache_->parent(node)) {
      path.push_back(node);
    }
    std::uint64_t hash = node < 0 ? root_hash(cache_->root_name(node)) : known(node);
    while (!path.empty()) {
      hash = block_hash(hash, cache_->tokens(path.back()));
      known(path.back()) = hash;
      path.pop_back();
    }
    return hash;
  }

 private:
  std::uint64_t& known(BlockId block) {
    const auto place = static_cast<std::size_t>(block);
    if (place >= known_.size()) {
      known_.resize(place + 1, 0);
    }
    return known_[place];
  }

  const PrefixCache* cache_;
  std::vector<std::uint64_t> known_;  // 0: not yet
};

// Tells holders of a block apart from the holder that is being billed.
constexpr std::size_t kNobodyYet = std::numeric_limits<std::size_t>::max();

// Bills block by block, for holders that come in the order in which they are charged.
class Billing {
 public:
  explicit Billing(const TierUse& use) : use_(&use), last_holder_(use.blocks.size(), kNobodyYet) {
    num_entries_.resize(use.blocks.size());
  }

  // A holder with these tables.
  BlockBill bill(const std::vector<std::span<const BlockId>>& tables) {
    ++holder_;
    BlockBill bill;
    std::vector<BlockId> distinct;
    for (const std::span<const BlockId> table : tables) {
      bill.num_entries += std::ssize(table);
      for (const BlockId block : table) {
        const std::size_t last = last_holder_[block];
        if (last != holder_) {
          bill.num_charged += last == kNobodyYet ? 1 : 0;
          distinct.push_back(block);
          num_entries_[block] = 0;
          last_holder_[block] = holder_;
        }
        ++num_entries_[block];
      }
    }
    bill.num_owned = std::ranges::count_if(
        distinct, [&](BlockId block) { return num_entries_[block] == use_->blocks[block].num_holders; });
    bill.num_shared = std::ssize(distinct) - bill.num_owned;
    return bill;
  }

 private:
  const TierUse* use_;
  std::vector<std::size_t> last_holder_;   // by block
  std::vector<std::int32_t> num_entries_;  // by block: of its last holder
  std::size_t holder_ = 0;
};

std::vector<std::span<const BlockId>> tables_of(const SequenceGroup& group) {
  std::vector<std::span<const BlockId>> tables;
  tables.reserve(group.sequences.size());
  for (const auto& sequence : group.sequences) {
    tables.push_back(sequence->table().blocks());
  }
  return tables;
}

RequestUse use_of(const SequenceGroup& group) {
  RequestUse use;
  use.id = group.id;
  use.state = group.state;
  use.priority = group.priority;
  use.num_sequences = static_cast<std::int32_t>(group.num_sequences());
  use.num_prompt_tokens = group.sequences.front()->num_prompt_tokens();
  for (const auto& sequence : group.sequences) {
    use.num_output_tokens += sequence->num_output_tokens();
    use.num_tokens += sequence->num_tokens();
    use.num_computed_tokens += sequence->num_computed_tokens();
  }
  use.in_line_since = group.in_line_since;
  use.num_preemptions = group.num_preemptions;
  use.num_tokens_recomputed = group.num_tokens_recomputed;
  use.num_blocks_swapped_out = group.num_blocks_swapped_out;
  use.num_blocks_swapped_in = group.num_blocks_swapped_in;
  return use;
}

}  // namespace

KVSnapshot Scheduler::snapshot() const {
  KVSnapshot snapshot;
  snapshot.step = plan_.step();
  snapshot.planned = !plan_.spent();
  snapshot.block_size = config_.block_size;
  snapshot.device = tier_use(Tier::kDevice);
  snapshot.host = tier_use(Tier::kHost);
  fill_hashes(snapshot);
  fill_holders(snapshot);
  Billing device(snapshot.device);
  Billing host(snapshot.host);
  const std::vector<PinnedPrefix> pins = pins_.list();
  const std::vector<const BlockTable*> tables = pins_.tables();
  for (std::size_t i = 0; i < pins.size(); ++i) {
    snapshot.pins.push_back({pins[i], device.bill({tables[i]->blocks()})});
  }
  for (const SequenceGroup* group : groups_by_arrival()) {
    RequestUse& use = snapshot.requests.emplace_back(use_of(*group));
    use.bill = (group->state == GroupState::kSwapped ? host : device).bill(tables_of(*group));
  }
  return snapshot;
}

Scheduler::SlotSplits Scheduler::slot_splits() const {
  return {.device = tier_use(Tier::kDevice).split, .host = tier_use(Tier::kHost).split};
}

std::vector<const SequenceGroup*> Scheduler::groups_by_arrival() const {
  std::vector<const SequenceGroup*> groups;
  groups.reserve(groups_.size());
  for (const auto& [id, group] : groups_) {
    groups.push_back(&group);
  }
  std::ranges::sort(groups, {}, &SequenceGroup::arrival);
  return groups;
}

TierUse Scheduler::tier_use(Tier tier) const {
  const BlockPool& pool = tier == Tier::kDevice ? kv_cache_.device_pool() : kv_cache_.host_pool();
  TierUse use;
  use.blocks.resize(static_cast<std::size_t>(pool.num_blocks()));
  for (BlockId block = 0; block < pool.num_blocks(); ++block) {
    const bool cached = pool.is_cached(block);
    use.blocks[block] = {.num_holders = pool.ref_count(block),
                         .num_tokens = cached ? config_.block_size : 0,
                         .cached = cached,
                         .quarantined = pool.is_quarantined(block),
                         .last_use = pool.last_use(block)};
  }
  fill_slots(use, tier);
  use.split = split_of(use, config_.block_size);
  return use;
}

void Scheduler::fill_slots(TierUse& use, Tier tier) const {
  const std::int32_t block_size = config_.block_size;
  for (const auto& [id, group] : groups_) {
    if ((group.state == GroupState::kSwapped) != (tier == Tier::kHost)) {
      continue;
    }
    for (const auto& sequence : group.sequences) {
      const std::span<const BlockId> table = sequence->table().blocks();
      for (std::int64_t i = 0; i < std::ssize(table); ++i) {
        std::int32_t& num_tokens = use.blocks[table[i]].num_tokens;
        num_tokens = std::max(num_tokens, tokens_in_block(sequence->num_computed_tokens(), i, block_size));
      }
    }
  }
  if (tier == Tier::kHost) {
    return;
  }
  for (const BlockTable* table : pins_.tables()) {  // which are cached blocks, and so count as full already
    for (const BlockId block : table->blocks()) {
      use.blocks[block].pinned = true;
    }
  }
  for (const PlannedSequence& planned : plan_.sequences()) {
    if (planned.sequence == nullptr) {
      continue;
    }
    const std::span<const BlockId> table = planned.sequence->table().blocks();
    const std::int64_t first = planned.what.first_token;
    const std::int64_t end = first + planned.what.num_tokens;
    for (std::int64_t i = first / block_size; i * block_size < end; ++i) {
      use.blocks[table[i]].num_reserved = tokens_in_block(end, i, block_size) - tokens_in_block(first, i, block_size);
    }
  }
}

void Scheduler::fill_hashes(KVSnapshot& snapshot) const {
  ContentHashes hashes(kv_cache_.prefix_cache());
  for (BlockId block = 0; block < kv_cache_.num_blocks(); ++block) {
    BlockUse& use = snapshot.device.blocks[block];
    use.content_hash = use.cached ? hashes.of(block) : 0;
  }
  for (BlockId block = 0; block < kv_cache_.host_pool().num_blocks(); ++block) {
    BlockUse& use = snapshot.host.blocks[block];
    use.content_hash = use.cached ? hashes.of(kv_cache_.host_node(block)) : 0;
  }
}

// Twice over the tables: how many hold each block is known, so where each block's holders begin is.
void Scheduler::fill_holders(KVSnapshot& snapshot) const {
  for (TierUse* use : {&snapshot.device, &snapshot.host}) {
    std::int32_t num_holders = 0;
    use->first_holder.reserve(use->blocks.size() + 1);
    for (const BlockUse& block : use->blocks) {
      use->first_holder.push_back(num_holders);
      num_holders += block.num_holders;
    }
    use->first_holder.push_back(num_holders);
    use->holders.resize(static_cast<std::size_t>(num_holders));
  }
  std::vector<std::int32_t> next_on_device = snapshot.device.first_holder;
  std::vector<std::int32_t> next_on_host = snapshot.host.first_holder;
  const auto add = [&](const BlockTable& table, GroupId group_id, bool on_host) {
    TierUse& use = on_host ? snapshot.host : snapshot.device;
    std::vector<std::int32_t>& next = on_host ? next_on_host : next_on_device;
    for (std::int32_t i = 0; i < table.size(); ++i) {
      use.holders[next[table.blocks()[i]]++] = {.owner = table.owner(), .group_id = group_id, .index = i};
    }
  };
  for (const BlockTable* table : pins_.tables()) {
    add(*table, 0, false);
  }
  for (const SequenceGroup* group : groups_by_arrival()) {
    for (const auto& sequence : group->sequences) {
      add(sequence->table(), group->id, group->state == GroupState::kSwapped);
    }
  }
}

}  // namespace fastpaged
