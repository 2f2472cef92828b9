// TokenWeights: the unnormalised probabilities of one row, and the draw from them.
//
// weight(id) = exp(scaled logit), a float32, for tokens up to a cutoff, 0 for the others; the best token has weight 1.
// Sums are float64, with one fixed tree inside a block and the blocks in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/sampling/scaled_row.h"
#include "fastpaged/sampling/token_order.h"

namespace fastpaged {

class TokenWeights {
 public:
  void assign(const ScaledRow& row, const Cutoff& cutoff);
  // total() and the block sums of all tokens, with nothing to read in the blocks or to choose from.
  void assign_sums(const ScaledRow& row);
  // Drops what is worse than `cutoff`. REQUIRES: the row last given to assign().
  void restrict(const ScaledRow& row, const Cutoff& cutoff);

  [[nodiscard]] double total() const { return total_; }
  // 0 says that every weight of the block is 0; block() is then not to be read.
  [[nodiscard]] double block_sum(std::int32_t b) const { return block_sums_[b]; }
  [[nodiscard]] const float* block(std::int32_t b) const { return &weights_[std::size_t(b) * kLogitBlock]; }

  // Inverse CDF over ascending ids: the first token whose cumulated weight exceeds u * total(), u in (0, 1).
  // Never a token of weight 0.
  [[nodiscard]] TokenId choose(double u) const;

 private:
  void weigh(const ScaledRow& row, const Cutoff& cutoff, float* weights);

  Cutoff cutoff_ = keep_all();
  std::vector<float> weights_;      // [num_blocks * kLogitBlock]
  std::vector<double> block_sums_;  // [num_blocks]
  double total_ = 0.0;
};

}  // namespace fastpaged
