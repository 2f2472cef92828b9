// LogitRow: one row of logits, seen as blocks of equal size.
//
// Every pass over a row goes block by block, so that reductions have one tree that depends on the vocabulary size
// alone, and blocks that cannot matter are skipped by their maximum.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "fastpaged/base/types.h"
#include "fastpaged/ops/logit_passes.h"

namespace fastpaged {

class LogitRow {
 public:
  // REQUIRES: size > 0; logits [size] outlives the row. passes: how to go over it; the bits are the same with all.
  LogitRow(const float* logits, std::int32_t size, const LogitPasses& passes = scalar_logit_passes)
      : logits_(logits), passes_(&passes), size_(size), num_blocks_((size - 1) / kLogitBlock + 1) {
    const std::int32_t begin = (num_blocks_ - 1) * kLogitBlock;
    last_.fill(-std::numeric_limits<float>::infinity());
    std::copy(logits + begin, logits + size, last_.begin());
  }

  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] std::int32_t num_blocks() const { return num_blocks_; }
  [[nodiscard]] float operator[](TokenId id) const { return logits_[id]; }
  [[nodiscard]] const float* data() const { return logits_; }
  [[nodiscard]] const LogitPasses& passes() const { return *passes_; }

  // kLogitBlock logits from id b * kLogitBlock on; the last block is padded with -inf.
  [[nodiscard]] const float* block(std::int32_t b) const {
    return b + 1 < num_blocks_ ? logits_ + std::int64_t{b} * kLogitBlock : last_.data();
  }

 private:
  const float* logits_;
  const LogitPasses* passes_;
  std::int32_t size_;
  std::int32_t num_blocks_;
  std::array<float, kLogitBlock> last_;
};

}  // namespace fastpaged
