// Values of paged attention: weighted by the exponentials of their scores and summed, key by key in order; and how the
// partials of spans become one output.
#pragma once

#include <cstdint>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/attention_scores.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

constexpr int kMixRows = 6;  // at most, that share the values in registers

// Where the values of a span lie, and the weights of the rows: [row][kSpan].
template <typename A>
struct Values {
  const A* const* key_at;
  std::int64_t value_offset;  // from a key to its value
  std::int64_t head_dim;
};

// mix[r] += sum of weights[r][j] * v[j] over the keys, for kRows rows, and kParts vectors of D from d on.
template <int kRows, int kParts, typename A>
static void mix_vectors(const Values<A>& values, KeyRange keys, std::int64_t d, const float* weights, float* mix,
                        std::int64_t mix_stride) {
  Floats sums[kRows][kParts];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
      sums[r][c] = load(mix + r * mix_stride + d + c * kLanes);
    }
  }
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const A* value = values.key_at[j] + values.value_offset + d;
    Floats parts[kParts];
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
      parts[c] = load(value + c * kLanes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Floats weight = set1(weights[r * kSpan + j]);
#pragma GCC unroll 8
      for (int c = 0; c < kParts; ++c) {
        sums[r][c] = fma(weight, parts[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
      store(mix + r * mix_stride + d + c * kLanes, sums[r][c]);
    }
  }
}

// All of D, from d on: kParts vectors at a time, then half as many.
template <typename A, int kRows, int kParts = side_by_side(kRows)>
static void mix_rows(const Values<A>& values, KeyRange keys, const float* weights, float* mix, std::int64_t mix_stride,
                     std::int64_t d = 0) {
  for (; d + kParts * kLanes <= values.head_dim; d += kParts * kLanes) {
    mix_vectors<kRows, kParts>(values, keys, d, weights, mix, mix_stride);
  }
  if constexpr (kParts > 1) {
    mix_rows<A, kRows, kParts / 2>(values, keys, weights, mix, mix_stride, d);
  }
}

static void clear(float* mix, std::int64_t head_dim) {
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(mix + d, zero());
  }
}

// into = into joined with next, the span that follows.
static void join(Partial into, Partial next, std::int64_t head_dim) {
  const float largest = *into.largest > *next.largest ? *into.largest : *next.largest;
  const Floats old_factor = exp(sub(set1(*into.largest), set1(largest)));
  const Floats new_factor = exp(sub(set1(*next.largest), set1(largest)));
  *into.largest = largest;
  *into.sum = first_lane(fma(set1(*into.sum), old_factor, mul(set1(*next.sum), new_factor)));
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(into.mix + d, fma(load(into.mix + d), old_factor, mul(load(next.mix + d), new_factor)));
  }
}

static void copy(Partial into, Partial from, std::int64_t head_dim) {
  *into.largest = *from.largest;
  *into.sum = *from.sum;
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(into.mix + d, load(from.mix + d));
  }
}

template <typename A>
static void write_output(Partial partial, std::int64_t head_dim, A* out) {
  const Floats sum = set1(*partial.sum);
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(out + d, div(load(partial.mix + d), sum));
  }
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
