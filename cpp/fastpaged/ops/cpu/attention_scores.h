// Scores of paged attention: keys transposed, q . k, and what becomes of a score before the softmax.
//
// A key or query is read in units of 32 bits: one float32, or, where the instruction set multiplies them so, a pair of
// neighbouring bfloat16; elsewhere bfloat16 is widened. Keys lie transposed, [tile][unit][kKeyTile keys]; a score is
// one accumulator over the units in order, so that it is the same whichever tiles and rows are computed beside it.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/validate.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

constexpr std::int64_t kKeyTile = kLanes;  // keys side by side in one vector of scores
constexpr int kScoreRows = 4;              // at most, that share the keys in registers

// Elements of A in a unit.
template <typename A>
constexpr std::int64_t kUnit = std::is_same_v<A, BFloat16> && kHasDot ? 2 : 1;

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

template <typename A>
static inline Floats load_units(const A* from, [[maybe_unused]] std::int64_t count) {
  if constexpr (kUnit<A> == 2) {
    return load(reinterpret_cast<const float*>(from), count);
  } else {
    return load(from);
  }
}

template <typename A>
static void spread_query(const A* query, std::int64_t head_dim, float* units) {
  const std::int64_t num_units = head_dim / kUnit<A>;
  for (std::int64_t u = 0; u < num_units; u += kLanes) {
    store(units + u, load_units(query + u * kUnit<A>, num_units - u), num_units - u);
  }
}

// Transposes one tile of keys.
template <typename A>
static void transpose_keys(const A* const* key_at, std::int64_t head_dim, float* to) {
  const std::int64_t num_units = head_dim / kUnit<A>;
  for (std::int64_t u = 0; u < num_units; u += kLanes) {
    const std::int64_t count = num_units - u < kLanes ? num_units - u : kLanes;
    Floats rows[kKeyTile];
#pragma GCC unroll 16
    for (int key = 0; key < kKeyTile; ++key) {
      rows[key] = load_units(key_at[key] + u * kUnit<A>, count);
    }
    transpose(rows);
    for (std::int64_t i = 0; i < count; ++i, to += kKeyTile) {
      store(to, rows[i]);
    }
  }
}

// q . k for kRows query rows and kTiles tiles of keys.
template <typename A, int kRows, int kTiles>
static void score_tiles(const float (*queries)[kMaxHeadDim], const float* keys, std::int64_t num_units, float* scores) {
  Floats sums[kRows][kTiles];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      sums[r][t] = zero();
    }
  }
  for (std::int64_t u = 0; u < num_units; ++u) {
    Floats units[kTiles];
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      units[t] = load(keys + (t * num_units + u) * kKeyTile);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Floats query = set1(queries[r][u]);
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kUnit<A> == 2) {
          sums[r][t] = dot(reinterpret_cast<Pairs>(query), reinterpret_cast<Pairs>(units[t]), sums[r][t]);
        } else {
          sums[r][t] = fma(query, units[t], sums[r][t]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      store(scores + r * kSpan + t * kKeyTile, sums[r][t]);
    }
  }
}

// Tiles [first, end): kTiles at a time, then half as many.
template <typename A, int kRows, int kTiles = side_by_side(kRows)>
static void score_rows(const float (*queries)[kMaxHeadDim], const float* keys, std::int64_t num_units,
                       std::int64_t first, std::int64_t end, float* scores) {
  for (; first + kTiles <= end; first += kTiles) {
    score_tiles<A, kRows, kTiles>(queries, keys + first * num_units * kKeyTile, num_units, scores + first * kKeyTile);
  }
  if constexpr (kTiles > 1) {
    score_rows<A, kRows, kTiles / 2>(queries, keys, num_units, first, end, scores);
  }
}

// What is done to the q . k of one row.
struct ScoreRule {
  float scale;
  float soft_cap;        // 0: none
  float slope;           // of ALiBi; 0: none
  float first_distance;  // key position - query position, of the span's first key
};

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

// x for the keys of the tile at first_key that lie in `seen`, `other` for the rest.
static inline Floats where_seen(KeyRange seen, std::int64_t first_key, Floats x, Floats other) {
  x = first_lanes(seen.end - first_key, x, other);
  return seen.begin > first_key ? first_lanes(seen.begin - first_key, other, x) : x;
}

// Scores of the seen keys become exponentials, the rest of their tiles zeros.
static void exponentials(float* scores, KeyRange seen, const ScoreRule& rule, Partial partial) {
  const std::int64_t first_tile = seen.begin / kKeyTile * kKeyTile;
  Floats high = set1(-__builtin_inff());
  for (std::int64_t key = first_tile; key < seen.end; key += kKeyTile) {
    const Floats ruled = apply(rule, load(scores + key), key);
    store(scores + key, ruled);
    high = where_seen(seen, key, max(high, ruled), high);
  }
  *partial.largest = max_of_lanes(high);
  const Floats shift = set1(*partial.largest);
  Floats sums = zero();
  for (std::int64_t key = first_tile; key < seen.end; key += kKeyTile) {
    const Floats weights = where_seen(seen, key, exp(sub(load(scores + key), shift)), zero());
    store(scores + key, weights);
    sums = add(sums, weights);
  }
  *partial.sum = sum_of_lanes(sums);
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
