// TopP: where the nucleus of a row ends, found without sorting the row.
#pragma once

#include <array>
#include <vector>

#include "fastpaged/sampling/lanes.h"
#include "fastpaged/sampling/scaled_row.h"
#include "fastpaged/sampling/token_order.h"
#include "fastpaged/sampling/token_weights.h"

namespace fastpaged {

class TopP {
 public:
  // The last token of the shortest run of best tokens whose weights reach top_p * weights.total(); at least the best.
  // REQUIRES: weights were assigned from this row.
  Cutoff cutoff(const ScaledRow& row, const TokenWeights& weights, float top_p);

 private:
  struct Member {
    RankedToken token;
    float weight;
  };

  static constexpr int kNumBuckets = 1024;
  static IntLanes buckets_of(const ScaledRow& row, const Lanes& logits);

  void fill_histogram(const ScaledRow& row, const TokenWeights& weights, float lightest);
  void gather_members(const ScaledRow& row, const TokenWeights& weights, int bucket);
  Cutoff last_reaching(double missing);

  std::array<double, kNumBuckets>
      histogram_{};              // weight per bucket, the best tokens in bucket 0; light tokens are left out
  std::vector<Member> members_;  // of one bucket
};

}  // namespace fastpaged
