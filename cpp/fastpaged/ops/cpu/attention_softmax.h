// What becomes of the scores of one row over one span: the rules, then powers relative to the largest. Powers of two:
// e^(s - m) = 2^((s - m) log2 e).
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_math.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

// Values are weighted in pairs where one instruction does so: with weights rounded to bfloat16.
template <typename A>
constexpr bool kWeighsPairs = KVLayout<A>::kInPairs && kHasDot;
template <typename A>
using Weight = std::conditional_t<kWeighsPairs<A>, BFloat16, float>;

// What is done to the q . k of one row.
struct ScoreRule {
  float scale;
  float soft_cap;        // 0: none
  float slope;           // of ALiBi; 0: none
  float first_distance;  // key position - query position, of the span's first key
};

// The rule is but a factor that keeps the order of scores.
static inline bool is_plain(const ScoreRule& rule) {
  return rule.soft_cap == 0.0F && rule.slope == 0.0F && rule.scale >= 0.0F;
}

static inline Floats apply(const ScoreRule& rule, Floats scores, std::int64_t first_key) {
  scores = mul(scores, set1(rule.scale));
  if (rule.soft_cap != 0.0F) {
    scores = mul(tanh(div(scores, set1(rule.soft_cap))), set1(rule.soft_cap));
  }
  if (rule.slope != 0.0F) {
    const Floats distance = add(lane_numbers(), set1(rule.first_distance + static_cast<float>(first_key)));
    scores = fma(set1(rule.slope), distance, scores);
  }
  return scores;
}

// x for the keys of the vector at first_key that lie in `seen`, `other` for the rest.
static inline Floats where_seen(KeyRange seen, std::int64_t first_key, Floats x, Floats other) {
  if (seen.end < first_key + kLanes) {
    x = first_lanes(seen.end - first_key, x, other);
  }
  return seen.begin > first_key ? first_lanes(seen.begin - first_key, other, x) : x;
}

// NaN that is passed over here comes back as a weight.
static float largest_of(const float* scores, KeyRange seen) {
  const Floats least = set1(-__builtin_inff());
  Floats largest = least;
  for (std::int64_t key = seen.begin / kLanes * kLanes; key < seen.end; key += kLanes) {
    largest = max(largest, where_seen(seen, key, load(scores + key), least));
  }
  return max_of_lanes(largest);
}

static inline Floats weights_of(const float* scores, KeyRange seen, std::int64_t key, Floats largest, Floats factor) {
  return where_seen(seen, key, exp2(mul(sub(load(scores + key), largest), factor)), zero());
}

// weights = 2^((scores - largest) factor) of the seen keys, 0 for others of their vectors. Returns their sum.
static inline float weigh(const float* scores, KeyRange seen, Floats largest, Floats factor, float* weights) {
  Floats sums = zero();
  for (std::int64_t key = seen.begin / kLanes * kLanes; key < seen.end; key += kLanes) {
    const Floats some = weights_of(scores, seen, key, largest, factor);
    store(weights + key, some);
    sums = add(sums, some);
  }
  return sum_of_lanes(sums);
}
static inline float weigh(const float* scores, KeyRange seen, Floats largest, Floats factor, BFloat16* weights) {
  constexpr BFloat16 kOnes[2] = {{0x3F80}, {0x3F80}};
  const Pairs ones = broadcast_pair(kOnes);
  Floats sums = zero();
  for (std::int64_t key = seen.begin / (2 * kLanes) * (2 * kLanes); key < seen.end; key += 2 * kLanes) {
    const Pairs some = round_to_pairs(weights_of(scores, seen, key, largest, factor),
                                      weights_of(scores, seen, key + kLanes, largest, factor));
    store_pairs(weights + key, some);
    sums = dot(some, ones, sums);
  }
  return sum_of_lanes(sums);
}

// Scores [kSpan] of one row become weights [kSpan]; those of vectors without a seen key are left alone. Of the partial,
// the largest score and the sum are set. What unseen keys have for a score does not matter.
template <typename W>
static void soften(float* scores, KeyRange seen, const ScoreRule& rule, W* weights, Partial partial) {
  constexpr float kLog2OfE = 1.44269504F;
  float factor = kLog2OfE;
  if (is_plain(rule)) {
    factor = rule.scale * kLog2OfE;
  } else {
    for (std::int64_t key = seen.begin / kLanes * kLanes; key < seen.end; key += kLanes) {
      store(scores + key, apply(rule, load(scores + key), key));
    }
  }
  const float largest = largest_of(scores, seen);
  *partial.largest = largest * factor;
  *partial.sum = weigh(scores, seen, set1(largest), set1(factor), weights);
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
