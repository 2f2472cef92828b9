#include "fastpaged/sampling/token_weights.h"

#include "fastpaged/sampling/exp.h"
#include "fastpaged/sampling/lanes.h"

namespace fastpaged {
namespace {

double sum_block(const float* weights) {
  constexpr int kChains = 8;
  double sum[kChains] = {};
  for (int i = 0; i < kLogitBlock; i += kChains) {
    for (int chain = 0; chain < kChains; ++chain) {
      sum[chain] += static_cast<double>(weights[i + chain]);
    }
  }
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// Zeroes the weights of tokens worse than the cutoff; the block's first token has id `begin`.
void drop_worse(const float* logits, TokenId begin, const Cutoff& cutoff, float* weights) {
  if (cutoff.logit == keep_all().logit) {
    return;  // whatever could be dropped has weight 0
  }
  // Of the tokens that tie with the cutoff, those up to its id stay.
  const std::int32_t last_tie = cutoff.id - begin;
  const IntLanes first = {0, 1, 2, 3};
  for (int i = 0; i < kLogitBlock; i += kLanes) {
    const Lanes x = load_lanes(logits + i);
    const IntLanes kept = (x > cutoff.logit) | ((x == cutoff.logit) & (first + i <= last_tie));
    store_lanes(keep_where(kept, load_lanes(weights + i)), weights + i);
  }
}

}  // namespace

void TokenWeights::assign(const ScaledRow& row, const Cutoff& cutoff) {
  const std::int32_t num_blocks = row.logits.num_blocks();
  weights_.resize(static_cast<std::size_t>(num_blocks) * kLogitBlock);
  block_sums_.assign(static_cast<std::size_t>(num_blocks), 0.0);
  total_ = 0.0;
  for (std::int32_t b = 0; b < num_blocks; ++b) {
    if (row.scan.block_max[b] >= cutoff.logit) {
      const float* logits = row.logits.block(b);
      float* weights = &weights_[static_cast<std::size_t>(b) * kLogitBlock];
      for (int i = 0; i < kLogitBlock; i += kLanes) {
        store_lanes(exp_nonpositive(row.scaled(load_lanes(logits + i))), weights + i);
      }
      drop_worse(logits, b * kLogitBlock, cutoff, weights);
      block_sums_[b] = sum_block(weights);
      total_ += block_sums_[b];
    }
  }
}

void TokenWeights::restrict(const ScaledRow& row, const Cutoff& cutoff) {
  total_ = 0.0;
  for (std::int32_t b = 0; b < row.logits.num_blocks(); ++b) {
    if (row.scan.block_max[b] < cutoff.logit) {
      block_sums_[b] = 0.0;
    }
    if (block_sums_[b] > 0.0) {
      float* weights = &weights_[static_cast<std::size_t>(b) * kLogitBlock];
      drop_worse(row.logits.block(b), b * kLogitBlock, cutoff, weights);
      block_sums_[b] = sum_block(weights);
      total_ += block_sums_[b];
    }
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
