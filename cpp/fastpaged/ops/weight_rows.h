// WeightRows: the parts of a linear weight, stacked along N, seen as one [N, K] matrix of bfloat16 or
// float32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

class WeightRows {
 public:
  // parts: [N_i, K] bfloat16 or float32 with dense rows; outlive this. dtype: what the rows are wanted in, one of the
  // same. Throws std::invalid_argument naming the part, also where all together have so many elements that their padded
  // size in bytes would overflow. gated: also where there are not as many ups as gates.
  WeightRows(std::span<const TensorView> parts, DType dtype, bool gated = false);

  [[nodiscard]] std::int64_t num_rows() const { return starts_.back(); }
  [[nodiscard]] std::int64_t row_size() const { return row_size_; }

  // Row n as elements A, BFloat16 or float: where it lies, or rounded or widened into scratch [K].
  template <typename A>
  const A* row(std::int64_t n, A* scratch) const;

 private:
  std::span<const TensorView> parts_;
  std::vector<std::int64_t> starts_;  // first row of each part, then the number of rows
  std::int64_t row_size_ = 0;
};

}  // namespace fastpaged
