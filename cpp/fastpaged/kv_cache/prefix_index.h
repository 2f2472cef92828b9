// PrefixIndex: from the hash of a key to the blocks that may have it. Open addressing with linear probing in one flat
// array, twice as large as there are blocks: a lookup touches one cache line, mostly.
//
// Invariant (check_invariants): from the place that its hash names to where it is, no block finds an empty slot.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

class PrefixIndex {
 public:
  // REQUIRES: max_blocks >= 0.
  explicit PrefixIndex(std::int32_t max_blocks)
      : slots_(max_blocks == 0 ? 1 : std::bit_ceil(std::size_t{2} * static_cast<std::size_t>(max_blocks))) {}

  [[nodiscard]] std::int32_t size() const { return size_; }

  // The first block with this hash that `is_it` says is the one.
  template <typename IsIt>
  [[nodiscard]] std::optional<BlockId> find(std::uint64_t hash, IsIt&& is_it) const {
    for (std::size_t place = home(hash); !slots_[place].empty(); place = after(place)) {
      if (slots_[place].hash == hash && is_it(slots_[place].block)) {
        return slots_[place].block;
      }
    }
    return std::nullopt;
  }
  // REQUIRES: it is not in there, and fewer than max_blocks are.
  void insert(std::uint64_t hash, BlockId block);
  // REQUIRES: `block` is in there with this hash, and `by` is not in there.
  void replace(std::uint64_t hash, BlockId block, BlockId by);
  // REQUIRES: it is in there with this hash.
  void erase(std::uint64_t hash, BlockId block);
  void clear();

  void check_invariants() const;

 private:
  struct Slot {
    std::uint64_t hash = 0;
    BlockId block = kEmpty;
    [[nodiscard]] bool empty() const { return block == kEmpty; }
  };
  static constexpr BlockId kEmpty = -1;

  [[nodiscard]] std::size_t place_of(std::uint64_t hash, BlockId block) const;
  [[nodiscard]] std::size_t home(std::uint64_t hash) const { return hash & (slots_.size() - 1); }
  [[nodiscard]] std::size_t after(std::size_t place) const { return (place + 1) & (slots_.size() - 1); }

  std::vector<Slot> slots_;  // a power of two; at least half of them empty, or all
  std::int32_t size_ = 0;
};

}  // namespace fastpaged
