#include "fastpaged/kv_cache/block_table.h"

#include <algorithm>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/block_pool.h"

namespace fastpaged {

BlockTable::~BlockTable() {
  give_back();
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_), owner_(other.owner_), version_(other.version_++), blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = other.pool_;
    owner_ = other.owner_;
    version_ = std::max(version_, other.version_++) + 1;
    blocks_ = std::exchange(other.blocks_, {});
  }
  return *this;
}

bool BlockTable::is_shared(std::int32_t index) const {
  return pool_->ref_count(blocks_[index]) > 1;
}

bool BlockTable::grow_to(std::int32_t num_blocks) {
  require(num_blocks <= pool_->num_blocks(), [&] {
    return "sequence " + std::to_string(owner_) + " cannot hold " + std::to_string(num_blocks) + " blocks: the " +
           pool_->name() + " pool has " + std::to_string(pool_->num_blocks());
  });
  const std::int32_t missing = num_blocks - size();
  if (missing > pool_->num_free()) {
    return false;
  }
  for (std::int32_t i = 0; i < missing; ++i) {
    blocks_.push_back(0);  // first the room, which may throw, then the block, which must not be lost
    const std::optional<BlockId> block = pool_->allocate(owner_);
    if (!block) {
      throw_invariant("BlockTable: the pool has fewer free blocks than it says", std::source_location::current());
    }
    blocks_.back() = *block;
  }
  return true;
}

BlockTable BlockTable::fork(SequenceId owner, std::int32_t num_blocks) const {
  require(num_blocks >= 0 && num_blocks <= size(), [&] {
    return "num_blocks must be in [0, " + std::to_string(size()) + "], the blocks of sequence " +
           std::to_string(owner_) + ", got " + std::to_string(num_blocks);
  });
  BlockTable child(*pool_, owner);
  child.blocks_.reserve(num_blocks);
  for (const BlockId block : blocks().first(num_blocks)) {
    pool_->retain(block, owner);
    child.blocks_.push_back(block);
  }
  return child;
}

void BlockTable::truncate(std::int32_t num_blocks) {
  // Last block first: the free list is LIFO, so the next table gets them in order again.
  while (size() > num_blocks) {
    ++version_;
    pool_->release(blocks_.back(), owner_);
    blocks_.pop_back();
  }
}

void BlockTable::replace(std::int32_t index, BlockId block) {
  ++version_;
  const BlockId old = std::exchange(blocks_[index], block);
  pool_->release(old, owner_);
}

void BlockTable::move_to(BlockPool& pool, std::vector<BlockId> blocks) {
  clear();
  pool_ = &pool;
  blocks_ = std::move(blocks);
}

// A release that fails means that somebody else gave this table's block back. A destructor cannot say so without ending
// the process: the block is left alone, and the pool counts it, which the scheduler looks at.
void BlockTable::give_back() noexcept {
  while (!blocks_.empty()) {
    try {
      clear();
    } catch (const std::invalid_argument&) {
      blocks_.pop_back();
      pool_->note_refused_release();
    }
  }
}

}  // namespace fastpaged
