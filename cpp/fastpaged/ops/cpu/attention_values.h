// Values of paged attention: weighted and summed, in order of position, and how the partials of spans become one
// output.
//
// Values lie in pairs of keys (bfloat16) or one by one (float32); a step is one of either. Where a row sees but one key
// of a pair, the other's value, which may be anything, is masked out.
#pragma once

#include <cstdint>

#include "fastpaged/ops/cpu/attention_scores.h"
#include "fastpaged/ops/cpu/attention_softmax.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

constexpr int kMixRows = 6;  // at most, that share the values in registers

template <typename A>
constexpr std::int64_t kStep = KVLayout<A>::kInPairs ? 2 : 1;  // keys

// Where element d of the keys of a step lies; its neighbours in D follow. values: of each tile of a span.
template <typename A>
static inline const A* values_at(const A* const* values, std::int64_t step, std::int64_t head_dim, std::int64_t d) {
  constexpr std::uint64_t kStepsPerTile = kKeyTile / kStep<A>;
  const auto at = static_cast<std::uint64_t>(step);  // no sign to divide by a shift
  return values[at / kStepsPerTile] + (static_cast<std::int64_t>(at % kStepsPerTile) * head_dim + d) * kStep<A>;
}

// sums += weights times values, of one step of one row and kParts vectors of D.
template <int kParts>
static inline void add_step(const float* weights, const Floats (&values)[kParts], Floats (&sums)[kParts]) {
  const Floats weight = set1(*weights);
#pragma GCC unroll 8
  for (int c = 0; c < kParts; ++c) {
    sums[c] = fma(weight, values[c], sums[c]);
  }
}
template <int kParts>
static inline void add_step(const float* weights, const Pairs (&values)[kParts], Floats (&sums)[kParts]) {
  const Floats first = set1(weights[0]);
  const Floats second = set1(weights[1]);
#pragma GCC unroll 8
  for (int c = 0; c < kParts; ++c) {
    sums[c] = fma(second, second_of(values[c]), fma(first, first_of(values[c]), sums[c]));
  }
}
template <int kParts>
static inline void add_step(const BFloat16* weights, const Pairs (&values)[kParts], Floats (&sums)[kParts]) {
  const Pairs weight = broadcast_pair(weights);
#pragma GCC unroll 8
  for (int c = 0; c < kParts; ++c) {
    sums[c] = dot(weight, values[c], sums[c]);
  }
}

// mix[r] += weights[r] times values over the steps, for kRows rows, and kParts vectors of D from d on.
// weights: [row][kSpan]. kFetches: with what is read later fetched beside.
template <typename A, int kRows, bool kFetches, int kParts>
static void mix_vectors(const SpanTiles<A>& tiles, KeyRange steps, std::int64_t head_dim, std::int64_t d,
                        const Weight<A>* weights, float* mix, std::int64_t mix_stride) {
  Floats sums[kRows][kParts];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
      sums[r][c] = load(mix + r * mix_stride + d + c * kLanes);
    }
  }
  for (std::int64_t step = steps.begin; step < steps.end; ++step) {
    const A* from = values_at(tiles.values, step, head_dim, d);
    decltype(load_units(from)) values[kParts];
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
      values[c] = load_units(from + c * kLanes * kStep<A>);
      if constexpr (kFetches) {
        fetch_line(values_at(tiles.after_values, step, head_dim, d) + c * kLanes * kStep<A>);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      add_step(weights + r * kSpan + step * kStep<A>, values, sums[r]);
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
template <typename A, int kRows, bool kFetches, int kParts = side_by_side(kRows)>
static void mix_rows(const SpanTiles<A>& tiles, KeyRange steps, std::int64_t head_dim, const Weight<A>* weights,
                     float* mix, std::int64_t mix_stride, std::int64_t d = 0) {
  for (; d + kParts * kLanes <= head_dim; d += kParts * kLanes) {
    mix_vectors<A, kRows, kFetches, kParts>(tiles, steps, head_dim, d, weights, mix, mix_stride);
  }
  if constexpr (kParts > 1) {
    mix_rows<A, kRows, kFetches, kParts / 2>(tiles, steps, head_dim, weights, mix, mix_stride, d);
  }
}

// The step of one key alone, of one row.
template <typename A>
static void mix_key(const SpanTiles<A>& tiles, std::int64_t key, std::int64_t head_dim, const Weight<A>* weights,
                    float* mix) {
  const std::int64_t step = key / kStep<A>;
  const std::int64_t in_step = key % kStep<A>;
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    const auto values = load_units(values_at(tiles.values, step, head_dim, d));
    Floats sum = load(mix + d);
    if constexpr (kWeighsPairs<A>) {
      sum = dot(broadcast_pair(weights + step * kStep<A>), one_of_each(values, in_step), sum);
    } else if constexpr (KVLayout<A>::kInPairs) {
      sum = fma(set1(weights[key]), in_step == 0 ? first_of(values) : second_of(values), sum);
    } else {
      sum = fma(set1(weights[key]), values, sum);
    }
    store(mix + d, sum);
  }
}

static inline void clear(float* mix, std::int64_t head_dim) {
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(mix + d, zero());
  }
}

// into = into joined with next, the span that follows.
static void join(Partial into, Partial next, std::int64_t head_dim) {
  const float largest = *into.largest > *next.largest ? *into.largest : *next.largest;
  // One of them is 1: which one, nobody can foretell, so there is no branch.
  const Floats old_factor = exp2(set1(*into.largest - largest));
  const Floats new_factor = exp2(set1(*next.largest - largest));
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
  const Floats factor = div(set1(1.0F), set1(*partial.sum));
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(out + d, mul(load(partial.mix + d), factor));
  }
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
