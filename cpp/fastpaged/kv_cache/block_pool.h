// BlockPool: the blocks of one memory tier as ids and reference counts; it never sees a byte.
//
// The free list is LIFO: the block given back last is handed out first, so that a small working set stays small. A new
// pool hands out 0, 1, 2, ...
//
// Whoever takes or gives back a block says who it is (an owner: the id of a sequence), so that an error names both
// sides. The pool counts references; who holds them is the business of the block tables.
//
// Invariants (check_invariants):
//   1. every id in [0, num_blocks) is either on the free list with count 0, or off it with count > 0;
//   2. the free list holds no id twice.
// Not thread-safe: the scheduler's thread owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

class BlockPool {
 public:
  // name: of the tier, for messages ("device"). Throws std::invalid_argument for num_blocks < 0.
  BlockPool(std::string name, std::int32_t num_blocks);
  BlockPool(const BlockPool&) = delete;  // block tables point to their pool
  BlockPool& operator=(const BlockPool&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(ref_counts_.size()); }
  [[nodiscard]] std::int32_t num_free() const { return static_cast<std::int32_t>(free_list_.size()); }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const;  // throws std::invalid_argument for an unknown block

  // A free block with count 1, or nullopt when none is left.
  [[nodiscard]] std::optional<BlockId> allocate(SequenceId owner);
  // Count + 1. Throws std::invalid_argument for a free or unknown block.
  void retain(BlockId block, SequenceId owner);
  // Count - 1; at 0 the block goes back to the free list. Throws std::invalid_argument for a free or unknown block,
  // naming who wanted to release it and who had it last.
  void release(BlockId block, SequenceId owner);

  [[nodiscard]] std::vector<BlockId> free_blocks() const;  // in the order they would be allocated
  void check_invariants() const;

 private:
  void require_known(BlockId block) const;
  void require_held(BlockId block, const char* operation, SequenceId owner) const;

  std::string name_;
  std::vector<BlockId> free_list_;  // the next to be allocated is at the back
  std::vector<std::int32_t> ref_counts_;
  std::vector<std::optional<SequenceId>> last_owner_;  // who took, shared or gave back each block last
};

}  // namespace fastpaged
