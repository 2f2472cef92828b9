#include "fastpaged/kv_cache/block_pool.h"

#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

void require_known(BlockId block, std::int32_t num_blocks) {
  require(block >= 0 && block < num_blocks, [&] {
    return "block " + std::to_string(block) + " is unknown: this pool has blocks 0.." + std::to_string(num_blocks - 1);
  });
}

}  // namespace

BlockPool::BlockPool(std::int32_t num_blocks) {
  require(num_blocks > 0, [&] { return "num_blocks must be > 0, got " + std::to_string(num_blocks); });
  ref_counts_.assign(num_blocks, 0);
  free_list_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) {
    free_list_.push_back(block);
  }
}

std::int32_t BlockPool::ref_count(BlockId block) const {
  require_known(block, num_blocks());
  return ref_counts_[block];
}

std::optional<BlockId> BlockPool::allocate() {
  if (free_list_.empty()) {
    return std::nullopt;
  }
  const BlockId block = free_list_.back();
  free_list_.pop_back();
  ref_counts_[block] = 1;
  return block;
}

void BlockPool::retain(BlockId block) {
  require_held(block, "retain");
  ++ref_counts_[block];
}

void BlockPool::release(BlockId block) {
  require_held(block, "release");
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

void BlockPool::require_held(BlockId block, const char* operation) const {
  require_known(block, num_blocks());
  require(ref_counts_[block] > 0, [&] {
    return std::string("cannot ") + operation + " block " + std::to_string(block) + ": it is free (reference count 0)";
  });
}

}  // namespace fastpaged
