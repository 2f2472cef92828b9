#include "fastpaged/kv_cache/block_table.h"

#include <optional>
#include <source_location>
#include <stdexcept>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/block_pool.h"

namespace fastpaged {

BlockTable::~BlockTable() {
  give_back();
}

BlockTable::BlockTable(BlockTable&& other) noexcept : pool_(other.pool_), blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = other.pool_;
    blocks_ = std::exchange(other.blocks_, {});
  }
  return *this;
}

bool BlockTable::grow_to(std::int32_t num_blocks) {
  const std::int32_t missing = num_blocks - size();
  if (missing > pool_->num_free()) {
    return false;
  }
  for (std::int32_t i = 0; i < missing; ++i) {
    blocks_.push_back(0);  // first the room, which may throw, then the block, which must not be lost
    const std::optional<BlockId> block = pool_->allocate();
    if (!block) {
      throw_invariant("BlockTable: the pool has fewer free blocks than it says", std::source_location::current());
    }
    blocks_.back() = *block;
  }
  return true;
}

void BlockTable::clear() {
  // Last block first: the free list is LIFO, so the next table gets them in order again.
  while (!blocks_.empty()) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
  }
}

// A release that fails means that somebody else gave this table's block back. A destructor cannot say so without ending
// the process: the block is left alone, and the scheduler's check_invariants reports the count.
void BlockTable::give_back() noexcept {
  while (!blocks_.empty()) {
    try {
      clear();
    } catch (const std::invalid_argument&) {
      blocks_.pop_back();
    }
  }
}

}  // namespace fastpaged
