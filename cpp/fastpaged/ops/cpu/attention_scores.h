// Scores of paged attention, q . k: one accumulator per row and key, over the elements of D in order, two at a time
// where they lie in pairs. So a score is the same whichever tiles and rows are computed beside it.
#pragma once

#include <cstdint>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/vector.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

constexpr int kScoreRows = kLanes == 16 ? 6 : 4;  // at most, that share the keys in registers
// A column is one vector of scores: kLanes neighbouring keys of a tile.
constexpr std::int64_t kColumnsPerTile = kKeyTile / kLanes;

// How many vectors side by side each of `rows` rows is multiplied with, so that the sums, the vectors and the row's own
// factor stay in registers; a vector for one row alone is used at once. A power of two: halves take up the rest.
constexpr int side_by_side(int rows) {
  constexpr int kRegisters = 2 * kLanes;
  int count = 8;
  while ((rows == 1 ? count + 2 : count * (rows + 1) + 1) > kRegisters) {
    count /= 2;
  }
  return count;
}

// Elements of A in a unit of 32 bits, the step of the sums over D.
template <typename A>
constexpr std::int64_t kUnit = 4 / static_cast<std::int64_t>(sizeof(A));

static inline void fetch_line(const void* from) {
  __builtin_prefetch(from, 0, 2);
}

static inline Floats load_units(const float* from) {
  return load(from);
}
static inline Pairs load_units(const BFloat16* from) {
  return load_pairs(from);
}
static inline Floats spread_unit(const float* from) {
  return set1(*from);
}
static inline Pairs spread_unit(const BFloat16* from) {
  return broadcast_pair(from);
}
static inline Floats multiply(Floats a, Floats b, Floats c) {
  return fma(a, b, c);
}
static inline Floats multiply(Pairs a, Pairs b, Floats c) {
  return dot(a, b, c);
}

// For kRows rows and kColumns columns, from `column` of the span on; scores: [row][kSpan]. kFetches: with what is read
// later fetched beside.
template <typename A, int kRows, bool kFetches, int kColumns>
static void score_columns(const A* const* queries, const SpanTiles<A>& tiles, std::int64_t head_dim,
                          std::int64_t column, float* scores) {
  const A* keys[kColumns];
  const A* after[kColumns];
  Floats sums[kRows][kColumns];
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
    const std::int64_t at = column + c;
    keys[c] = tiles.keys[at / kColumnsPerTile] + at % kColumnsPerTile * kLanes * kUnit<A>;
    after[c] = kFetches ? tiles.after_keys[at / kColumnsPerTile] : nullptr;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      sums[r][c] = zero();
    }
  }
  for (std::int64_t d = 0; d < head_dim; d += kUnit<A>) {
    decltype(load_units(keys[0])) units[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      units[c] = load_units(keys[c] + d * kKeyTile);
      if constexpr (kFetches) {
        fetch_line(after[c] + d * kKeyTile);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto query = spread_unit(queries[r] + d);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        sums[r][c] = multiply(query, units[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      store(scores + r * kSpan + (column + c) * kLanes, sums[r][c]);
    }
  }
}

// Columns [column, end): kColumns at a time, then half as many.
template <typename A, int kRows, bool kFetches, int kColumns = side_by_side(kRows)>
static void score_rows(const A* const* queries, const SpanTiles<A>& tiles, std::int64_t head_dim, std::int64_t column,
                       std::int64_t end, float* scores) {
  for (; column + kColumns <= end; column += kColumns) {
    score_columns<A, kRows, kFetches, kColumns>(queries, tiles, head_dim, column, scores);
  }
  if constexpr (kColumns > 1) {
    score_rows<A, kRows, kFetches, kColumns / 2>(queries, tiles, head_dim, column, end, scores);
  }
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
