// SlotContents: a memory in which each slot holds the whole text up to its token, so that nothing can stand in for
// anything else.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/base/types.h"
#include "kv_cache/slow_text.h"

namespace fastpaged::test {

class SlotContents {
 public:
  explicit SlotContents(std::int32_t block_size) : block_size_(static_cast<std::size_t>(block_size)) {}

  // Token `index` of the text is computed into the table's place for it.
  void write(std::span<const BlockId> table, const SlowText& text, std::size_t index) {
    slots(false, table[index / block_size_])[index % block_size_] = text.first(index + 1);
  }

  void copy(std::span<const BlockCopy> copies) {
    for (const BlockCopy& copy : copies) {
      for (std::int32_t i = 0; i < copy.num_blocks; ++i) {
        const bool from_host = copy.kind == CopyKind::kSwapIn;
        const bool to_host = copy.kind == CopyKind::kSwapOut;
        slots(to_host, copy.destination + i) = std::vector(slots(from_host, copy.source + i));
      }
    }
  }

  // Whether these blocks hold the text's tokens from `begin` (a block's first) to `end`.
  [[nodiscard]] bool hold(bool on_host, std::span<const BlockId> blocks, const SlowText& text, std::size_t begin,
                          std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const SlowText& slot = slots(on_host, blocks[(i - begin) / block_size_])[i % block_size_];
      if (slot.size() != i + 1 || !text.begins_with(slot)) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<SlowText>& slots(bool on_host, BlockId block) {
    std::vector<SlowText>& held = slots_[{on_host, block}];
    held.resize(block_size_);
    return held;
  }

  std::size_t block_size_;
  std::map<std::pair<bool, BlockId>, std::vector<SlowText>> slots_;
};

}  // namespace fastpaged::test
