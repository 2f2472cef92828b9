// WeightRows: the parts of a linear weight, stacked along N, seen as one [N, K] matrix of bfloat16.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

class WeightRows {
 public:
  // parts: [N_i, K] bfloat16 or float32 with dense rows; outlive this. Throws std::invalid_argument naming the part,
  // also where all together have so many elements that their padded size in bytes would overflow.
  explicit WeightRows(std::span<const TensorView> parts);

  [[nodiscard]] std::int64_t num_rows() const { return starts_.back(); }
  [[nodiscard]] std::int64_t row_size() const { return row_size_; }

  // Row n as bfloat16: where it lies, or rounded into scratch [K].
  const BFloat16* row(std::int64_t n, BFloat16* scratch) const;

 private:
  std::span<const TensorView> parts_;
  std::vector<std::int64_t> starts_;  // first row of each part, then the number of rows
  std::int64_t row_size_ = 0;
};

}  // namespace fastpaged
