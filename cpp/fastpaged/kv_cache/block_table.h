// BlockTable: the blocks of one sequence, in order. Move-only owner: its destructor gives the blocks back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

class BlockPool;

class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}  // REQUIRES: the pool outlives the table
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  [[nodiscard]] std::span<const BlockId> blocks() const { return blocks_; }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks_.size()); }

  // Appends blocks until there are num_blocks: all of them, or none and false when the pool has too few.
  // A table that is already as long stays as it is.
  [[nodiscard]] bool grow_to(std::int32_t num_blocks);
  void clear();

 private:
  void give_back() noexcept;

  BlockPool* pool_;
  std::vector<BlockId> blocks_;
};

}  // namespace fastpaged
