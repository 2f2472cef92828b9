#include "fastpaged/kv_cache/block_pool.h"

#include <algorithm>
#include <numeric>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

// Before the list is made: a wrong size must not be an allocation that fails.
std::int32_t valid_num_blocks(std::int32_t num_blocks) {
  require(num_blocks >= 0, [&] { return "num_blocks must be >= 0, got " + std::to_string(num_blocks); });
  return num_blocks;
}

}  // namespace

std::string owner_name(SequenceId owner) {
  return owner < kFirstPinOwner ? "sequence " + std::to_string(owner) : "pin " + std::to_string(owner - kFirstPinOwner);
}

BlockPool::BlockPool(std::string name, std::int32_t num_blocks)
    : name_(std::move(name)), free_list_(valid_num_blocks(num_blocks)) {
  ref_counts_.assign(num_blocks, 0);
  cached_.assign(num_blocks, false);
  quarantined_.assign(num_blocks, false);
  last_owner_.assign(num_blocks, std::nullopt);
  last_use_.assign(num_blocks, 0);
}

std::int32_t BlockPool::ref_count(BlockId block) const {
  require_known(block);
  return ref_counts_[block];
}

std::optional<BlockId> BlockPool::allocate(SequenceId owner) {
  const std::optional<BlockId> block = free_list_.front();
  if (!block) {
    return std::nullopt;
  }
  free_list_.remove(*block);
  ref_counts_[*block] = 1;
  ++num_references_;
  last_owner_[*block] = owner;
  last_use_[*block] = step_;
  if (cached_[*block]) {
    cached_[*block] = false;
    evicted_(*block, owner);
  }
  return block;
}

void BlockPool::retain(BlockId block, SequenceId owner) {
  require_held(block, "share", owner);
  ++ref_counts_[block];
  ++num_references_;
  last_owner_[block] = owner;
  last_use_[block] = step_;
}

void BlockPool::release(BlockId block, SequenceId owner) {
  if (num_quarantined_ > 0 && block >= 0 && block < num_blocks() && quarantined_[block]) {
    return;
  }
  require_held(block, "release", owner);
  last_owner_[block] = owner;
  last_use_[block] = step_;
  --num_references_;
  if (--ref_counts_[block] == 0) {
    cached_[block] ? free_list_.push_back(block) : free_list_.push_front(block);
  }
}

bool BlockPool::is_cached(BlockId block) const {
  require_known(block);
  return cached_[block];
}

void BlockPool::cache(BlockId block, SequenceId owner) {
  require_held(block, "cache", owner);
  cached_[block] = true;
}

void BlockPool::uncache(BlockId block) {
  invariant(is_cached(block), "BlockPool: a block that is not cached would be uncached");
  cached_[block] = false;
  if (ref_counts_[block] == 0) {
    free_list_.remove(block);
    free_list_.push_front(block);
  }
}

bool BlockPool::take_cached(BlockId block, SequenceId owner) {
  invariant(is_cached(block), "BlockPool: a block that is not cached would be taken for what it holds");
  const bool was_free = ref_counts_[block] == 0;
  if (was_free) {
    free_list_.remove(block);
  }
  ++ref_counts_[block];
  ++num_references_;
  last_owner_[block] = owner;
  last_use_[block] = step_;
  return was_free;
}

std::vector<BlockId> BlockPool::free_blocks(bool cached) const {
  std::vector<BlockId> blocks = free_list_.ids();
  std::erase_if(blocks, [&](BlockId block) { return cached_[block] != cached; });
  return blocks;
}

void BlockPool::check_invariants() const {
  free_list_.check_invariants();
  const std::vector<BlockId> free = free_list_.ids();
  std::vector<bool> is_free(ref_counts_.size(), false);
  for (const BlockId block : free) {
    invariant(!is_free[block], "BlockPool: a block is on the free list twice");
    is_free[block] = true;
  }
  invariant(std::ranges::is_partitioned(free, [&](BlockId block) { return !cached_[block]; }),
            "BlockPool: a cached block would be evicted before one that holds nothing is used");
  invariant(std::ranges::count(quarantined_, true) == num_quarantined_, "BlockPool: lost count of quarantined blocks");
  for (BlockId block = 0; block < num_blocks(); ++block) {
    invariant(ref_counts_[block] >= 0, "BlockPool: a negative reference count");
    invariant(!quarantined_[block] || (ref_counts_[block] == 0 && !cached_[block] && !is_free[block]),
              "BlockPool: a quarantined block is in use");
    invariant(quarantined_[block] || (ref_counts_[block] == 0) == is_free[block],
              "BlockPool: free list and reference counts disagree");
  }
  invariant(std::accumulate(ref_counts_.begin(), ref_counts_.end(), std::int64_t{0}) == num_references_,
            "BlockPool: lost count of the references");
}

void BlockPool::require_known(BlockId block) const {
  require(block >= 0 && block < num_blocks(), [&] {
    return "block " + std::to_string(block) + " is unknown: the " + name_ + " pool has " +
           std::to_string(num_blocks()) + " blocks";
  });
}

void BlockPool::require_held(BlockId block, const char* operation, SequenceId owner) const {
  require_known(block);
  require(ref_counts_[block] > 0, [&] {
    const std::optional<SequenceId>& last = last_owner_[block];
    return owner_name(owner) + " cannot " + operation + " block " + std::to_string(block) + " of the " + name_ +
           " pool: it is free, " + (last ? "last given back by " + owner_name(*last) : std::string("never allocated"));
  });
}

}  // namespace fastpaged
