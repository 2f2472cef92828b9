// FreeList: some of the ids in [0, num_ids), in an order, as one doubly linked list inside two arrays: any of them can
// be taken out in O(1), and nothing is ever allocated.
//
// Invariant (check_invariants): from the front on, every id occurs once, and each one's neighbours know it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

class FreeList {
 public:
  // All of them, in order. REQUIRES: num_ids >= 0.
  explicit FreeList(std::int32_t num_ids);

  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] std::optional<BlockId> front() const { return size_ > 0 ? std::optional(next_[end_]) : std::nullopt; }
  // REQUIRES: the id is not in the list.
  void push_front(BlockId id) { insert_before(next_[end_], id); }
  void push_back(BlockId id) { insert_before(static_cast<BlockId>(end_), id); }
  // REQUIRES: the id is in the list.
  void remove(BlockId id);

  [[nodiscard]] std::vector<BlockId> ids() const;  // from the front on
  // The same of a list that may be broken: as far as it goes without meeting an id again.
  [[nodiscard]] std::vector<BlockId> reachable_ids() const;
  void assign(std::span<const BlockId> ids);  // becomes these. REQUIRES: none occurs twice
  void check_invariants() const;

 private:
  void insert_before(BlockId place, BlockId id);

  std::size_t end_;  // num_ids: the place after the last one and before the first
  std::int32_t size_;
  std::vector<BlockId> next_, prev_;  // by id, and at end_
};

}  // namespace fastpaged
