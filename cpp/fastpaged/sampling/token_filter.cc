#include "fastpaged/sampling/token_filter.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fastpaged/sampling/lanes.h"

namespace fastpaged {
namespace {

// The lowest logit that passes, with all of its ties.
Cutoff min_p_cutoff(const ScaledRow& row, float min_p) {
  const float lowest = std::log(std::min(min_p, 1.0F));
  Lanes floor = all_lanes(row.scan.max);
  for (std::int32_t b = 0; b < row.logits.num_blocks(); ++b) {
    if (row.scaled(row.scan.block_max[b]) >= lowest) {
      const float* logits = row.logits.block(b);
      for (int i = 0; i < kLogitBlock; i += kLanes) {
        const Lanes x = load_lanes(logits + i);
        floor = row.scaled(x) >= lowest ? min_lanes(x, floor) : floor;
      }
    }
  }
  return {std::min({floor[0], floor[1], floor[2], floor[3]}), keep_all().id};
}

}  // namespace

void TokenFilter::apply(const ScaledRow& row, const SamplingParams& params, TokenWeights& weights) {
  Cutoff cutoff = keep_all();
  if (params.min_p > 0.0F) {
    cutoff = min_p_cutoff(row, params.min_p);
  }
  if (params.top_k > 0 && params.top_k < row.logits.size()) {
    cutoff = stricter(cutoff, nth_best(row.logits, row.scan, params.top_k, scratch_));
  }
  weights.assign(row, cutoff);
  if (params.top_p < 1.0F) {
    weights.restrict(row, top_p_.cutoff(row, weights, params.top_p));
  }
}

}  // namespace fastpaged
