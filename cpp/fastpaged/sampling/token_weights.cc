#include "fastpaged/sampling/token_weights.h"

#include <algorithm>
#include <cstddef>

namespace fastpaged {

void TokenWeights::assign(const ScaledRow& row, const Cutoff& cutoff) {
  weights_.resize(static_cast<std::size_t>(row.logits.num_blocks()) * kLogitBlock);
  weigh(row, cutoff, weights_.data());
}

void TokenWeights::assign_sums(const ScaledRow& row) {
  weigh(row, keep_all(), nullptr);
}

void TokenWeights::restrict(const ScaledRow& row, const Cutoff& cutoff) {
  assign(row, stricter(cutoff, cutoff_));
}

// weights: [num_blocks * kLogitBlock], or null.
void TokenWeights::weigh(const ScaledRow& row, const Cutoff& cutoff, float* weights) {
  const std::int32_t last = row.logits.num_blocks() - 1;
  cutoff_ = cutoff;
  block_sums_.resize(static_cast<std::size_t>(last) + 1);
  WeighParams params{.logits = row.logits.data(),
                     .block_max = row.scan.block_max.data(),
                     .num_blocks = last,
                     .max = row.scan.max,
                     .temperature = row.temperature,
                     .cutoff = cutoff.logit,
                     .last_tie = cutoff.id,
                     .weights = weights,
                     .block_sums = block_sums_.data()};
  row.logits.passes().weigh(params);
  const std::int32_t begin = last * kLogitBlock;
  params.logits = row.logits.block(last);
  params.block_max += last;
  params.num_blocks = 1;
  params.last_tie = std::max(cutoff.id, begin - 1) - begin;  // -1: none of its ties stay
  params.weights = weights == nullptr ? nullptr : weights + begin;
  params.block_sums += last;
  row.logits.passes().weigh(params);
  total_ = 0.0;
  for (const double sum : block_sums_) {
    total_ += sum;
  }
}

TokenId TokenWeights::choose(double u) const {
  const double target = u * total_;
  double before = 0.0;  // cumulated weight of the blocks before
  std::int32_t block_id = 0;
  for (std::int32_t b = 0; b < static_cast<std::int32_t>(block_sums_.size()); ++b) {
    if (block_sums_[b] > 0.0) {
      block_id = b;
      if (before + block_sums_[b] > target) {
        break;
      }
      before += block_sums_[b];
    }
  }
  const float* weights = block(block_id);
  int last = 0;
  for (int i = 0; i < kLogitBlock; ++i) {
    if (weights[i] > 0.0F) {
      last = i;
      before += static_cast<double>(weights[i]);
      if (before > target) {
        break;
      }
    }
  }
  return block_id * kLogitBlock + last;
}

}  // namespace fastpaged
