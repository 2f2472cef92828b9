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
  // owner: whose table it is. REQUIRES: the pool outlives the table.
  BlockTable(BlockPool& pool, SequenceId owner) : pool_(&pool), owner_(owner) {}
  ~BlockTable();
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  [[nodiscard]] SequenceId owner() const { return owner_; }
  [[nodiscard]] const BlockPool& pool() const { return *pool_; }
  [[nodiscard]] std::span<const BlockId> blocks() const { return blocks_; }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks_.size()); }
  // Changes whenever an entry does that was already there; growing alone keeps it. Compare it for one owner only.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  // Whether somebody else holds entry `index` too. REQUIRES: 0 <= index < size().
  [[nodiscard]] bool is_shared(std::int32_t index) const;

  // Appends blocks until there are num_blocks: all of them, or none and false when the pool has too few free ones.
  // A table that is already as long stays as it is. Throws std::invalid_argument for more than the pool has in all.
  [[nodiscard]] bool grow_to(std::int32_t num_blocks);
  // A table of another owner over the first num_blocks blocks, shared. Throws std::invalid_argument for num_blocks
  // outside [0, size()].
  [[nodiscard]] BlockTable fork(SequenceId owner, std::int32_t num_blocks) const;
  // Gives back what is beyond num_blocks; nothing if there is no more.
  void truncate(std::int32_t num_blocks);
  void clear() { truncate(0); }
  // Entry `index` becomes `block`, whose reference passes to this table; the old one is given back.
  void replace(std::int32_t index, BlockId block);
  // All entries become `blocks` of another pool, whose references pass to this table; the old ones are given back.
  void move_to(BlockPool& pool, std::vector<BlockId> blocks);

 private:
  void give_back() noexcept;

  BlockPool* pool_;
  SequenceId owner_;
  std::uint64_t version_ = 0;
  std::vector<BlockId> blocks_;
};

}  // namespace fastpaged
