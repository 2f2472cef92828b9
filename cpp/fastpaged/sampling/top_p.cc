#include "fastpaged/sampling/top_p.h"

#include <algorithm>
#include <cstdint>

namespace fastpaged {

// Distance to the best token in steps of 1/16 nat (6 % in weight). Monotone in the logit, so that buckets keep the
// order of tokens; the last bucket takes all that is 64 nats away, where a weight no longer moves a float64 sum.
IntLanes TopP::buckets_of(const ScaledRow& row, const Lanes& logits) {
  constexpr float kBucketsPerNat = 16.0F;
  const Lanes steps = row.scaled(logits) * -kBucketsPerNat;
  return __builtin_convertvector(min_lanes(steps, all_lanes(kNumBuckets - 1)), IntLanes);
}

// Finds the bucket in which the share is reached, and orders nothing but that bucket.
Cutoff TopP::cutoff(const ScaledRow& row, const TokenWeights& weights, float top_p) {
  const double target = static_cast<double>(top_p) * weights.total();
  // All tokens lighter than this together weigh half of what may be missing at most: the nucleus ends before them.
  const double lightest = (weights.total() - target) / (2.0 * row.logits.size());
  fill_histogram(row, weights, static_cast<float>(lightest));
  double reached = 0.0;  // by the buckets before
  int bucket = 0;
  for (int i = 0; i < kNumBuckets; ++i) {
    if (histogram_[i] > 0.0) {
      bucket = i;
      if (reached + histogram_[i] >= target) {
        break;
      }
      reached += histogram_[i];
    }
  }
  gather_members(row, weights, bucket);
  return last_reaching(target - reached);
}

void TopP::fill_histogram(const ScaledRow& row, const TokenWeights& weights, float lightest) {
  histogram_.fill(0.0);
  for (std::int32_t b = 0; b < row.logits.num_blocks(); ++b) {
    if (weights.block_sum(b) > 0.0 && weights.block_sum(b) >= static_cast<double>(lightest)) {
      const float* logits = row.logits.block(b);
      const float* block = weights.block(b);
      for (int i = 0; i < kLogitBlock; i += kLanes) {
        if (!any_lane(load_lanes(block + i) >= lightest)) {
          continue;
        }
        const IntLanes buckets = buckets_of(row, load_lanes(logits + i));
        for (int lane = 0; lane < kLanes; ++lane) {
          histogram_[buckets[lane]] += static_cast<double>(block[i + lane]);
        }
      }
    }
  }
}

void TopP::gather_members(const ScaledRow& row, const TokenWeights& weights, int bucket) {
  members_.clear();
  for (std::int32_t b = 0; b < row.logits.num_blocks(); ++b) {
    // The block's best token tells whether any of its tokens can be that good.
    if (weights.block_sum(b) > 0.0 && buckets_of(row, all_lanes(row.scan.block_max[b]))[0] <= bucket) {
      const float* logits = row.logits.block(b);
      const float* block = weights.block(b);
      for (int i = 0; i < kLogitBlock; i += kLanes) {
        const IntLanes buckets = buckets_of(row, load_lanes(logits + i));
        for (int lane = 0; lane < kLanes; ++lane) {
          if (buckets[lane] == bucket && block[i + lane] > 0.0F) {
            members_.push_back({{logits[i + lane], b * kLogitBlock + i + lane}, block[i + lane]});
          }
        }
      }
    }
  }
}

// Halves the range in which the last token lies: linear work, where a sort would pay for an order nobody asked for.
Cutoff TopP::last_reaching(double missing) {
  auto begin = members_.begin();
  auto end = members_.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, [](const Member& a, const Member& b) { return better(a.token, b.token); });
    double sum = 0.0;
    for (auto it = begin; it != middle; ++it) {
      sum += static_cast<double>(it->weight);
    }
    if (sum >= missing) {
      end = middle;
    } else {
      missing -= sum;
      begin = middle;
    }
  }
  return begin->token;
}

}  // namespace fastpaged
