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

// fn(first key) for vectors side by side of kKeys keys, that together hold the seen keys; is_whole: all of them are
// seen.
template <std::int64_t kKeys, typename Fn>
static inline void for_each_vector(KeyRange seen, const Fn& fn) {
  std::int64_t key = seen.begin / kKeys * kKeys;
  if (key < seen.begin) {
    fn(key, std::false_type{});
    key += kKeys;
  }
  for (; key + kKeys <= seen.end; key += kKeys) {
    fn(key, std::true_type{});
  }
  if (key < seen.end) {
    fn(key, std::false_type{});
  }
}

// NaN that is passed over here comes back as a weight.
static inline float largest_of(const float* scores, KeyRange seen) {
  const Floats least = set1(-__builtin_inff());
  Floats largest = least;
  for_each_vector<2 * kLanes>(seen, [&](std::int64_t key, auto is_whole) {
    Floats low = load(scores + key);
    Floats high = load(scores + key + kLanes);
    if (!is_whole) {
      low = where_seen(seen, key, low, least);
      high = where_seen(seen, key + kLanes, high, least);
    }
    largest = max(largest, max(low, high));
  });
  return max_of_lanes(largest);
}

// 2^((score - largest) factor). The largest becomes 1, however large it is.
template <typename W>
static inline Floats power_of(Floats score, Floats largest, Floats factor) {
  const Floats exponent = mul(sub(score, largest), factor);
  return std::is_same_v<W, BFloat16> ? exp2_coarse(exponent) : exp2(exponent);
}

// weights = 2^((scores - largest) factor) of the seen keys, 0 for others of their vectors. Returns their sum.
static inline float weigh(const float* scores, KeyRange seen, Floats largest, Floats factor, float* weights) {
  Floats sums = zero();
  for_each_vector<kLanes>(seen, [&](std::int64_t key, auto is_whole) {
    Floats some = power_of<float>(load(scores + key), largest, factor);
    if (!is_whole) {
      some = where_seen(seen, key, some, zero());
    }
    store(weights + key, some);
    sums = add(sums, some);
  });
  return sum_of_lanes(sums);
}
static inline float weigh(const float* scores, KeyRange seen, Floats largest, Floats factor, BFloat16* weights) {
  constexpr BFloat16 kOnes[2] = {{0x3F80}, {0x3F80}};
  const Pairs ones = broadcast_pair(kOnes);
  Floats sums = zero();
  for_each_vector<2 * kLanes>(seen, [&](std::int64_t key, auto is_whole) {
    Floats low = power_of<BFloat16>(load(scores + key), largest, factor);
    Floats high = power_of<BFloat16>(load(scores + key + kLanes), largest, factor);
    if (!is_whole) {
      low = where_seen(seen, key, low, zero());
      high = where_seen(seen, key + kLanes, high, zero());
    }
    const Pairs some = round_to_pairs(low, high);
    store_pairs(weights + key, some);
    sums = dot(some, ones, sums);
  });
  return sum_of_lanes(sums);
}

// What scores are multiplied with to become exponents of 2. A rule that is plain is part of it.
static inline float factor_of(const ScoreRule& rule) {
  constexpr float kLog2OfE = 1.44269504F;
  return is_plain(rule) ? rule.scale * kLog2OfE : kLog2OfE;
}

// The first half of what becomes of the scores [kSpan] of one row: the rule; the largest goes to the partial. What
// unseen keys have for a score does not matter.
static void find_largest(float* scores, KeyRange seen, const ScoreRule& rule, Partial partial) {
  if (!is_plain(rule)) {
    for (std::int64_t key = seen.begin / kLanes * kLanes; key < seen.end; key += kLanes) {
      store(scores + key, apply(rule, load(scores + key), key));
    }
  }
  *partial.largest = largest_of(scores, seen);
}

// The second half: weights [kSpan], those of vectors without a seen key left alone, and the partial's sum. Its largest
// becomes an exponent of 2.
template <typename W>
static void soften(const float* scores, KeyRange seen, const ScoreRule& rule, W* weights, Partial partial) {
  const float factor = factor_of(rule);
  *partial.sum = weigh(scores, seen, set1(*partial.largest), set1(factor), weights);
  *partial.largest *= factor;
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
