// CopyList: block copies in the order they were decided, neighbours merged.
//
// The order is what makes a freed block reusable at once: a block swapped out and handed to somebody else in the same
// plan is read by an earlier copy than the one that writes it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fastpaged/base/block_copy.h"

namespace fastpaged {

class CopyList {
 public:
  void add(CopyKind kind, BlockId source, BlockId destination);
  [[nodiscard]] std::span<const BlockCopy> copies() const { return copies_; }
  [[nodiscard]] std::int64_t num_blocks() const { return num_blocks_; }
  // All of them; the list is empty then.
  [[nodiscard]] std::vector<BlockCopy> take() {
    num_blocks_ = 0;
    return std::exchange(copies_, {});
  }

 private:
  std::vector<BlockCopy> copies_;
  std::int64_t num_blocks_ = 0;
};

}  // namespace fastpaged
