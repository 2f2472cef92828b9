#include "fastpaged/kv_cache/block_pool.h"

#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

BlockPool::BlockPool(std::string name, std::int32_t num_blocks) : name_(std::move(name)) {
  require(num_blocks >= 0, [&] { return "num_blocks must be >= 0, got " + std::to_string(num_blocks); });
  ref_counts_.assign(num_blocks, 0);
  last_owner_.assign(num_blocks, std::nullopt);
  free_list_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) {
    free_list_.push_back(block);
  }
}

std::int32_t BlockPool::ref_count(BlockId block) const {
  require_known(block);
  return ref_counts_[block];
}

std::optional<BlockId> BlockPool::allocate(SequenceId owner) {
  if (free_list_.empty()) {
    return std::nullopt;
  }
  const BlockId block = free_list_.back();
  free_list_.pop_back();
  ref_counts_[block] = 1;
  last_owner_[block] = owner;
  return block;
}

void BlockPool::retain(BlockId block, SequenceId owner) {
  require_held(block, "share", owner);
  ++ref_counts_[block];
  last_owner_[block] = owner;
}

void BlockPool::release(BlockId block, SequenceId owner) {
  require_held(block, "release", owner);
  last_owner_[block] = owner;
  if (--ref_counts_[block] == 0) {
    free_list_.push_back(block);
  }
}

std::vector<BlockId> BlockPool::free_blocks() const {
  return {free_list_.rbegin(), free_list_.rend()};
}

void BlockPool::check_invariants() const {
  std::vector<bool> is_free(ref_counts_.size(), false);
  for (const BlockId block : free_list_) {
    invariant(block >= 0 && block < num_blocks(), "BlockPool: an unknown block is on the free list");
    invariant(!is_free[block], "BlockPool: a block is on the free list twice");
    is_free[block] = true;
  }
  for (BlockId block = 0; block < num_blocks(); ++block) {
    invariant(ref_counts_[block] >= 0, "BlockPool: a negative reference count");
    invariant((ref_counts_[block] == 0) == is_free[block], "BlockPool: free list and reference counts disagree");
  }
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
    return "sequence " + std::to_string(owner) + " cannot " + operation + " block " + std::to_string(block) +
           " of the " + name_ + " pool: it is free, " +
           (last ? "last given back by sequence " + std::to_string(*last) : std::string("never allocated"));
  });
}

}  // namespace fastpaged
